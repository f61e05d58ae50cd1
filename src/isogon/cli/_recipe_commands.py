"""`isogon transfer` and `isogon predict`; neither imports torch or pandas."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isogon.cli import _printing as printing
from isogon.errors import ArgumentError, IsogonError
from isogon.recipe import CHANGEABLE, Recipe

if TYPE_CHECKING:
    from isogon.schedules import Schedule

# Short names on the command line → the Python names.
ALIASES = {"wd": "weight_decay", "batch": "batch_size"}

# Numbers arrive as text, so that a refusal names flag, rule, value and cure like every other.
Optimizer = Annotated[str | None, typer.Option(help="sgd, nesterov, adamw, lion or muon (default: sgd).")]
Lr = Annotated[str | None, typer.Option(metavar="NUMBER", help="Peak learning rate η.")]
Wd = Annotated[str | None, typer.Option("--wd", "--weight-decay", metavar="NUMBER", help="Weight decay λ, PyTorch's.")]
Momentum = Annotated[
    str | None, typer.Option(metavar="NUMBER", help="Momentum μ, or β₁ of adamw and lion (default: 0.9).")
]
Beta2 = Annotated[str | None, typer.Option(metavar="NUMBER", help="β₂ of adamw and lion (default: 0.999, 0.99).")]
Batch = Annotated[
    str | None, typer.Option("--batch", "--batch-size", metavar="NUMBER", help="Batch size B: samples in a step.")
]
Samples = Annotated[str | None, typer.Option(metavar="NUMBER", help="Training samples N in an epoch.")]
Epochs = Annotated[str | None, typer.Option(metavar="NUMBER", help="Length of the run in epochs.")]
RecipeFile = Annotated[
    str | None, typer.Option("--recipe", metavar="FILE", help="TOML file to take the recipe from; flags override.")
]
Json = Annotated[bool, typer.Option("--json", help="Print machine-readable JSON.")]


def add_to(app: typer.Typer) -> None:
    """Register both commands."""
    app.command("transfer")(transfer)
    app.command("predict")(predict)


def transfer(
    optimizer: Optimizer = None,
    lr: Lr = None,
    wd: Wd = None,
    momentum: Momentum = None,
    beta2: Beta2 = None,
    batch: Batch = None,
    samples: Samples = None,
    epochs: Epochs = None,
    recipe: RecipeFile = None,
    to: Annotated[
        list[str] | None,
        typer.Option(help="What the new run has different, as name=value: lr, wd, momentum, batch, samples, epochs."),
    ] = None,
    solve: Annotated[
        str, typer.Option(help="What is set so that the tuning factor stays: wd, lr, batch, momentum.")
    ] = "wd",
    within: Annotated[
        str, typer.Option(metavar="NUMBER", help="Factor either way of the interval; lower it when you have evidence.")
    ] = "2",
    save: Annotated[str | None, typer.Option(metavar="FILE", help="Write the new recipe to this TOML file.")] = None,
    as_json: Json = False,
) -> None:
    """Move a recipe to another batch size, data size, learning rate or momentum.

    The tuning factor Nηλ/(B(1−μ)) stays, and with it the angle by which the weights turn in an epoch.

    Example, a weight decay found on 1/16 of the data carried to all of it:

    [bold]isogon transfer --lr 0.1 --wd 0.0016 --batch 512 --samples 80000 --epochs 200 --to samples=1280000[/bold]
    """
    source = _recipe(recipe, optimizer, lr, wd, momentum, beta2, batch, samples, epochs)
    moved = source.transfer(solve=ALIASES.get(solve, solve), within=_number("--within", within), **_changes(to or []))
    if save is not None:
        _save(moved.recipe, save)
    if as_json:
        interval = None if moved.interval is None else list(moved.interval)
        answer = {"solved": ALIASES.get(solve, solve), "interval": interval, **_facts(moved.recipe)}
        printing.print_json({**answer, "warnings": list(moved.warnings)})
        return
    printing.show_transfer(source, moved, ALIASES.get(solve, solve))


def predict(
    optimizer: Optimizer = None,
    lr: Lr = None,
    wd: Wd = None,
    momentum: Momentum = None,
    beta2: Beta2 = None,
    batch: Batch = None,
    samples: Samples = None,
    epochs: Epochs = None,
    recipe: RecipeFile = None,
    schedule: Annotated[
        str,
        typer.Option(
            help="constant, cosine, linear, step, step:150,225/10 (÷ 10 at the ends of epochs 150 and 225), or any "
            "other name that lab and studies know."
        ),
    ] = "constant",
    init_norm: Annotated[
        str | None,
        typer.Option(metavar="NUMBER", help="First ‖w‖, in equilibrium norms unless --unit-grad-sq is given."),
    ] = None,
    unit_grad_sq: Annotated[
        str | None, typer.Option(metavar="NUMBER", help="E‖g‖²‖w‖², where you have measured it.")
    ] = None,
    plot: Annotated[
        str | None, typer.Option(metavar="FILE", help="Draw the run into this file: .png, .pdf, .svg or .html.")
    ] = None,
    as_json: Json = False,
) -> None:
    """See what a recipe will do before running it: norm, angles and effective rate over the whole run.

    Example:

    [bold]isogon predict --lr 0.1 --wd 5e-4 --batch 128 --samples 50000 --epochs 300 --schedule step:150,225/10[/bold]
    """
    # Here, not above: `isogon transfer` needs none of it and should start in a blink.
    from isogon.predict import curves
    from isogon.report import check_plot_path, draw_runs

    if plot is not None:
        check_plot_path(plot)
    source = _recipe(recipe, optimizer, lr, wd, momentum, beta2, batch, samples, epochs)
    run = curves(
        source,
        _schedule(schedule, source),
        initial_norm=None if init_norm is None else _number("--init-norm", init_norm),
        unit_grad_sq=None if unit_grad_sq is None else _number("--unit-grad-sq", unit_grad_sq),
    )
    if plot is not None:
        draw_runs({"predicted": run}, plot, title=printing.one_line(source))
    if as_json:
        columns = {name: values.tolist() for name, values in vars(run).items()}
        printing.print_json({**_facts(source), "curves": columns, "warnings": list(source.warnings)})
        return
    printing.show_prediction(source, run)
    if plot is not None:
        typer.echo(f"Drawn into {plot}.")


def _recipe(
    file: str | None,
    optimizer: str | None,
    lr: str | None,
    wd: str | None,
    momentum: str | None,
    beta2: str | None,
    batch: str | None,
    samples: str | None,
    epochs: str | None,
) -> Recipe:
    """The recipe from the file, if one is named, with the flags laid over it."""
    numbers = {
        "lr": ("--lr", lr),
        "weight_decay": ("--wd", wd),
        "momentum": ("--momentum", momentum),
        "beta2": ("--beta2", beta2),
        "batch_size": ("--batch", batch),
        "samples": ("--samples", samples),
        "epochs": ("--epochs", epochs),
    }
    fields: dict[str, Any] = {} if file is None else Recipe.load(file).to_dict()
    fields |= {name: _number(flag, text) for name, (flag, text) in numbers.items() if text is not None}
    if optimizer is not None:
        fields["optimizer"] = optimizer
    for name in ("lr", "weight_decay", "batch_size", "samples"):
        if name not in fields:
            flag = numbers[name][0]
            raise IsogonError(f"{flag} must be given: add {flag} with a number, or --recipe with a file.")
    return Recipe(**fields)


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ArgumentError(name, "a number", text, "for example 0.1 or 1e-4") from None


def _changes(items: list[str]) -> dict[str, float]:
    changes: dict[str, float] = {}
    for item in items:
        name, separator, text = item.partition("=")
        name = ALIASES.get(name.strip(), name.strip())
        if not separator or name not in CHANGEABLE:
            raise ArgumentError(
                "--to",
                "name=value with lr, wd, momentum, batch, samples or epochs",
                item,
                "for example --to batch=1024",
            )
        if name in changes:
            raise ArgumentError("--to", "one value for each name", item, f"give {name} once")
        changes[name] = _number(f"--to {name}", text)
    return changes


def _schedule(text: str, recipe: Recipe) -> Schedule:
    """The schedule of this name; exponential ones, which have no weight decay, are refused."""
    from isogon.schedules import from_name

    return from_name(
        text,
        recipe,
        epochs=recipe.epochs,
        steps_per_epoch=recipe.steps_per_epoch,
        argument="--schedule",
        exponential=False,
    )


def _facts(recipe: Recipe) -> dict[str, Any]:
    """What both commands report about a recipe, under the Python names."""
    motion = recipe.motion
    step_angle, epoch_angle = float(motion.angle(1)), float(motion.angle(recipe.steps_per_epoch))
    return {
        "recipe": recipe.to_dict(),
        "tuning_factor": recipe.tuning_factor,
        "intrinsic_lr": recipe.intrinsic_lr,
        "steps_per_epoch": recipe.steps_per_epoch,
        "step_angle": step_angle,
        "step_angle_degrees": math.degrees(step_angle),
        "epoch_angle": epoch_angle,
        "epoch_angle_degrees": math.degrees(epoch_angle),
        "timescale": motion.timescale,
        "timescale_epochs": motion.timescale / recipe.steps_per_epoch,
        "approximate": motion.approximate,
        "underdamped": motion.underdamped,
    }


def _save(recipe: Recipe, path: str) -> None:
    try:
        recipe.save(path)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ArgumentError("--save", "a file we can write", path, f"{reason}; choose another path") from None
