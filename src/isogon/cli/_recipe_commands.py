"""`isogon transfer` and `isogon predict`; neither imports torch or pandas."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isogon.cli import _printing as printing
from isogon.errors import ArgumentError, IsogonError, check_choice, check_whole
from isogon.recipe import (
    CHANGEABLE,
    CONVENTIONS,
    MODEL_CHANGES,
    REGIMES,
    Recipe,
    field_name,
    is_relative,
    new_value,
    place,
)

if TYPE_CHECKING:
    from isogon.schedules import Schedule

# Numbers arrive as text, so that a refusal names flag, rule, value and cure like every other.
Optimizer = Annotated[str | None, typer.Option(help="sgd, nesterov, adamw, lion or muon, in any case (default: sgd).")]
Lr = Annotated[str | None, typer.Option("--lr", "--learning-rate", metavar="NUMBER", help="Peak learning rate η.")]
Wd = Annotated[str | None, typer.Option("--wd", "--weight-decay", metavar="NUMBER", help="Weight decay λ.")]
Momentum = Annotated[
    str | None,
    typer.Option("--momentum", "--beta1", metavar="NUMBER", help="Momentum μ, or β₁ of adamw and lion (default: 0.9)."),
]
Beta2 = Annotated[str | None, typer.Option(metavar="NUMBER", help="β₂ of adamw and lion (default: 0.999, 0.99).")]
Batch = Annotated[
    str | None,
    typer.Option("--batch", "--batch-size", metavar="NUMBER", help="Batch size B: samples in a step, on all devices."),
]
Samples = Annotated[
    str | None,
    typer.Option(metavar="NUMBER", help="Training samples N in an epoch: images, sequences or tokens, as the batch."),
]
Epochs = Annotated[
    str | None, typer.Option(metavar="NUMBER", help="Length of the run in epochs; 1 where every sample is seen once.")
]
Convention = Annotated[
    str | None,
    typer.Option(
        help="What weight decay means: coupled (torch's SGD), decoupled (torch's AdamW), independent (not multiplied "
        "by lr), cautious. Default: torch's own."
    ),
]
Devices = Annotated[
    str | None, typer.Option(metavar="NUMBER", help="Processes that share a step, where --recipe counts one's batch.")
]
RecipeFile = Annotated[
    str | None,
    typer.Option(
        "--recipe",
        metavar="FILE",
        help="File to take the recipe from: isogon's TOML, Hugging Face's TrainingArguments (.json), timm's args.yaml, "
        "Lightning's hparams.yaml, a nanoGPT .py, or a text of flags; options override.",
    ),
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
    convention: Convention = None,
    recipe: RecipeFile = None,
    devices: Devices = None,
    to: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="What the new run has different: batch, samples, lr, wd, momentum, epochs as numbers or factors "
            "(x4, x0.5); params=x10 and width=x2 where the model grows; beta2=half-life; convention=independent.",
        ),
    ] = None,
    solve: Annotated[str, typer.Option(help="What is set by the rule: wd, lr, batch, momentum.")] = "wd",
    rule: Annotated[
        str,
        typer.Option(help="factor (by the regime), or sde for a batch size along the same stochastic equation."),
    ] = "factor",
    regime: Annotated[
        str | None, typer.Option(help=f"{', '.join(REGIMES)}; decided by --epochs where it is not given.")
    ] = None,
    tokens_per_sample: Annotated[
        str | None, typer.Option(metavar="NUMBER", help="Length of a sequence, to compare with the critical batch.")
    ] = None,
    within: Annotated[
        str | None,
        typer.Option(metavar="NUMBER", help="Factor either way of the interval, instead of the measured one."),
    ] = None,
    save: Annotated[str | None, typer.Option(metavar="FILE", help="Write the new recipe to this TOML file.")] = None,
    as_json: Json = False,
) -> None:
    """Answer "batch × 4, what do I change?": move a recipe to another batch, data size, learning rate or model.

    Over several epochs the tuning factor Nηλ/(B(1−μ)) stays, and with it the angle by which the weights turn in an
    epoch; in one epoch it grows with the samples per parameter.

    Examples, a batch four times as large, and a weight decay found on 1/16 of the data carried to all of it:

    [bold]isogon transfer --optimizer AdamW --lr 3e-3 --wd 0.1 --batch 256 --samples 1e6 --epochs 1 --to batch=x4[/bold]

    [bold]isogon transfer --lr 0.1 --wd 0.0016 --batch 512 --samples 80000 --epochs 200 --to samples=x16[/bold]
    """
    source = _recipe(recipe, optimizer, lr, wd, momentum, beta2, batch, samples, epochs, convention, devices)
    if not to:
        raise IsogonError("--to must be given: say what the new run has different, for example --to batch=x4.")
    moved = source.transfer(
        solve=solve,
        rule=rule,
        regime=regime,
        within=None if within is None else _number("--within", within),
        tokens_per_sample=None if tokens_per_sample is None else _number("--tokens-per-sample", tokens_per_sample),
        **_changes(to or []),
    )
    if save is not None:
        _save(moved.recipe, save)
    if as_json:
        answer = {
            "summary": moved.summary,
            "regime": moved.regime,
            "solved": moved.solved[0] if len(moved.solved) == 1 else list(moved.solved),
            "interval": None if moved.interval is None else list(moved.interval),
            "evidence": list(moved.evidence),
            **_facts(moved.recipe),
        }
        printing.print_json({**answer, "warnings": list(moved.warnings)})
        return
    printing.show_transfer(source, moved)


def predict(
    optimizer: Optimizer = None,
    lr: Lr = None,
    wd: Wd = None,
    momentum: Momentum = None,
    beta2: Beta2 = None,
    batch: Batch = None,
    samples: Samples = None,
    epochs: Epochs = None,
    convention: Convention = None,
    recipe: RecipeFile = None,
    devices: Devices = None,
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
    published: Annotated[
        bool, typer.Option("--published", help="List published recipes by how far their weights turn, and stop.")
    ] = False,
    as_json: Json = False,
) -> None:
    """See what a recipe will do before running it: norm, angles and effective rate over the whole run.

    It ends with where the recipe stands among published ones.

    Example:

    [bold]isogon predict --lr 0.1 --wd 5e-4 --batch 128 --samples 50000 --epochs 300 --schedule step:150,225/10[/bold]
    """
    if published:
        printing.show_published(as_json=as_json)
        return
    # Here, not above: `isogon transfer` needs none of it and should start in a blink.
    from isogon.predict import curves
    from isogon.report import check_plot_path, draw_runs

    if plot is not None:
        check_plot_path(plot)
    source = _recipe(recipe, optimizer, lr, wd, momentum, beta2, batch, samples, epochs, convention, devices)
    run = curves(
        source,
        _schedule(schedule, source.in_convention(None)),
        initial_norm=None if init_norm is None else _number("--init-norm", init_norm),
        unit_grad_sq=None if unit_grad_sq is None else _number("--unit-grad-sq", unit_grad_sq),
    )
    if plot is not None:
        draw_runs({"predicted": run}, plot, title=printing.one_line(source))
    if as_json:
        columns = {name: values.tolist() for name, values in vars(run).items()}
        answer = {**_facts(source), "placement": str(place(source)), "curves": columns}
        printing.print_json({**answer, "warnings": list(source.warnings)})
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
    convention: str | None,
    devices: str | None,
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
    fields: dict[str, Any] = {}
    fields |= {name: _number(flag, text) for name, (flag, text) in numbers.items() if text is not None}
    fields |= {} if optimizer is None else {"optimizer": optimizer}
    if convention is not None:
        fields["convention"] = check_choice("--convention", convention.lower(), CONVENTIONS)
    if file is not None:
        count = None if devices is None else check_whole("--devices", _number("--devices", devices), cure="count them")
        return Recipe.read(file, devices=count, **fields)
    if devices is not None:
        raise IsogonError("--devices must go with --recipe: without a file --batch is that of all devices together.")
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


def _changes(items: list[str]) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    for item in items:
        name, separator, text = item.partition("=")
        name = field_name(name)
        if not separator or name not in (*CHANGEABLE, *MODEL_CHANGES):
            raise ArgumentError(
                "--to",
                "name=value with batch, samples, lr, wd, momentum, epochs, beta2, convention, params or width",
                item,
                "for example --to batch=x4",
            )
        if name in changes:
            raise ArgumentError("--to", "one value for each name", item, f"give {name} once")
        # Numbers and factors alike are read by name, so that both are refused in one way.
        keeps_text = name in ("convention", "beta2", *MODEL_CHANGES)
        changes[name] = text.strip() if keeps_text or is_relative(text) else new_value(f"--to {name}", text, None)
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
