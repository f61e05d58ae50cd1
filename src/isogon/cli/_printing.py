"""How recipes and predictions look on a terminal."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from isogon.recipe import PublishedRecipe, Recipe, Transfer, place, published_recipes

if TYPE_CHECKING:
    from isogon.predict import Curves

_ROWS = ("optimizer", "lr", "weight_decay", "momentum", "beta2", "batch_size", "samples", "epochs", "convention")


def show_transfer(source: Recipe, moved: Transfer) -> None:
    """What to change in a sentence; the two recipes side by side, the interval, the motion; the warnings."""
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"[bold]{moved.summary}[/bold]")
    console.print(f"Regime: {moved.regime_text}.")
    if moved.interval is not None:
        console.print(moved.interval_text)
    console.print()
    old, new = source.to_dict(), moved.recipe.to_dict()
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    table.add_column("given", justify="right")
    table.add_column("transferred", justify="right")
    table.add_column("")
    for name in _ROWS:
        if name not in old and name not in new:
            continue
        note = "← solved" if name in moved.solved else "← changed" if old.get(name) != new.get(name) else ""
        style = "bold green" if name in moved.solved else None
        table.add_row(name, _number(old.get(name)), _number(new.get(name)), note, style=style)
    console.print(table)
    console.print()
    _show_motion(console, moved.recipe)
    _show_warnings(console, moved.warnings)


def show_published(*, as_json: bool) -> None:
    """Published recipes, least epochs · F first."""
    if as_json:
        print_json([{"name": each.name, **_turning_facts(each), "source": each.source} for each in published_recipes()])
        return
    console = Console(highlight=False, soft_wrap=True)
    _show_recipes(console, published_recipes())
    console.print("\nF is the tuning factor of an epoch; over epochs · F ≪ 1 weight decay does next to nothing.")


def _turning_facts(entry: PublishedRecipe) -> dict[str, Any]:
    recipe = entry.recipe
    return {
        "optimizer": recipe.optimizer,
        "lr": recipe.lr,
        "weight_decay": recipe.weight_decay,
        "tuning_factor": recipe.tuning_factor,
        "epochs": recipe.epochs,
        "turning": entry.turning,
        "step_angle_degrees": math.degrees(float(recipe.motion.angle(1))),
    }


def _show_recipes(console: Console, entries: Sequence[PublishedRecipe]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("recipe", overflow="fold")
    for heading in ("optimizer", "F", "epochs", "epochs·F", "step angle"):
        table.add_column(heading, justify="right", no_wrap=True)
    for entry in entries:
        facts = _turning_facts(entry)
        shown = [f"{facts[name]:.3g}" for name in ("tuning_factor", "epochs", "turning")]
        table.add_row(entry.name, facts["optimizer"], *shown, f"{facts['step_angle_degrees']:.3g}°")
    console.print(table)


def show_prediction(recipe: Recipe, run: Curves) -> None:
    """The motion in equilibrium, then the run at about a dozen epochs, the rate's drops among them."""
    console = Console(highlight=False, soft_wrap=True)
    console.print(one_line(recipe))
    console.print()
    _show_motion(console, recipe)
    console.print()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("epoch", "lr", "norm", "effective lr", "step angle", "epoch angle", "of equilibrium"):
        table.add_column(heading, justify="right")
    for row in _rows_to_show(run):
        table.add_row(
            f"{run.epoch[row]:.4g}",
            f"{run.lr[row]:.3g}",
            f"{run.norm[row]:.4g}",
            f"{run.effective_lr[row]:.3g}",
            _degrees(run.step_angle[row]),
            _degrees(run.epoch_angle[row]),
            "–" if math.isnan(run.settled[row]) else f"{run.settled[row]:.0%}",
        )
    console.print(table)
    placement = place(recipe)
    console.print(f"\nIs this normal? {placement} The nearest:\n")
    _show_recipes(console, placement.nearest)
    _show_warnings(console, recipe.warnings)


def one_line(recipe: Recipe) -> str:
    """The recipe as one line of text."""
    return ", ".join(f"{name} {_number(value)}" for name, value in recipe.to_dict().items())


def _show_motion(console: Console, recipe: Recipe) -> None:
    motion, steps = recipe.motion, recipe.steps_per_epoch
    about = " (approximate)" if motion.approximate else ""
    facts = Table.grid(padding=(0, 2))
    facts.add_row("tuning factor", f"{recipe.tuning_factor:.4g}")
    for name, lag in (("angle per step", 1.0), ("angle per epoch", steps)):
        angle = float(motion.angle(lag))
        facts.add_row(
            name, f"{angle:.4g} rad = {math.degrees(angle):.4g}° in equilibrium, by gradient noise alone{about}"
        )
    facts.add_row("timescale", f"{motion.timescale / steps:.4g} epochs until the weights' direction is forgotten")
    console.print(facts)


def _show_warnings(console: Console, warnings: tuple[str, ...]) -> None:
    if warnings:
        console.print()
    for warning in warnings:
        console.print(f"[yellow]![/yellow] {warning}", markup=True)


def _rows_to_show(run: Curves, about: int = 9) -> list[int]:
    """Evenly spread rows, the ends, and the epochs before and after each drop of the rate."""
    last = len(run.epoch) - 1
    rows = {0, last, *np.linspace(0, last, about).round().astype(int).tolist()}
    drops = np.flatnonzero(run.lr[1:] < 0.7 * run.lr[:-1]) + 1
    if len(drops) <= about:  # a cosine's end falls steeply too, and needs no rows of its own
        rows |= {int(row) for drop in drops for row in (drop - 1, drop)}
    return sorted(rows)


def _number(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return "–" if value is None else str(value)


def _degrees(angle: float) -> str:
    return "–" if math.isnan(angle) else f"{math.degrees(angle):.4g}°"


def print_json(answer: Any) -> None:
    """`answer` as JSON on the standard output; numbers that JSON does not have (NaN, infinity) become null."""
    typer.echo(json.dumps(_replace_non_finite(answer), indent=2, allow_nan=False, ensure_ascii=False))


def _replace_non_finite(value: Any) -> Any:
    """
    >>> _replace_non_finite({"a": [1.0, math.nan], "b": (math.inf, "x")})
    {'a': [1.0, None], 'b': [None, 'x']}
    """
    if isinstance(value, dict):
        return {key: _replace_non_finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_non_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
