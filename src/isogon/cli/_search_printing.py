"""How a search and its progress look on a terminal."""

from __future__ import annotations

import shlex
from pathlib import Path

from rich.console import Console
from rich.table import Table

from isogon.cli._printing import one_line
from isogon.search import (
    RECIPE,
    TRIAL_STATUSES,
    Outcome,
    Progress,
    best,
    cost_sentence,
    counts,
    fraction_name,
    loss_sentence,
    lost_sentence,
    metric_value,
    remarks,
    trend_sentence,
)


def show_outcome(outcome: Outcome, folder: Path) -> None:
    """The answer, the tops that it rests on, what is weak about it, what it cost, what to do next."""
    console = Console(highlight=False, soft_wrap=True, markup=False)
    answer, (low, high) = getattr(outcome.recipe, outcome.unknown), outcome.interval
    least, most = outcome.trend.interval
    console.print()
    table = Table.grid(padding=(0, 2))
    table.add_row(outcome.unknown, f"{answer:.4g}", f"90 % interval {low:.3g} … {high:.3g}", style="bold green")
    table.add_row("tuning factor", f"{outcome.tuning_factor:.4g}", f"90 % interval {least:.3g} … {most:.3g}")
    console.print(table)
    console.print(one_line(outcome.recipe))
    console.print()
    console.print(_tops(outcome))
    console.print()
    for sentence in (trend_sentence(outcome), loss_sentence(outcome), cost_sentence(outcome), *_verified(outcome)):
        console.print(sentence)
    for remark in remarks(outcome):
        console.print(f"! {remark}")
    recipe = shlex.quote(str(folder / RECIPE))
    console.print()
    console.print(f"isogon predict --recipe {recipe}")
    console.print(f"isogon transfer --recipe {recipe} --to batch={2 * outcome.recipe.batch_size}")


def show_progress(progress: Progress) -> None:
    """How many trials of each fraction have which status, and the best so far."""
    console = Console(highlight=False, soft_wrap=True, markup=False)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("fraction", "samples", *TRIAL_STATUSES):
        table.add_column(heading, justify="right")
    tops = []
    for (fraction, samples, purpose), trials in progress.groups().items():
        name = fraction_name(fraction) if purpose == "search" else purpose
        table.add_row(name, f"{samples}", *(f"{count}" for count in counts(trials).values()))
        top = best(trials)
        if top is not None:
            value, metric = metric_value(progress.study, top["score"]), progress.study.task.metric
            result = f"tuning factor {top['tuning_factor']:.3g}, mean {metric} {value} over {top['seeds']} seeds"
            tops.append(f"Best so far at {samples} samples: {result}.")
    console.print(table)
    for sentence in tops:
        console.print(sentence)
    lost = lost_sentence(progress.trials)
    if lost:
        console.print(f"! {lost}")
    if progress.answer is None:
        console.print("Not finished yet: the same command resumes (trials that were stopped count as running).")
    else:
        unknown = progress.answer["unknown"]
        low, high = progress.answer["interval"]
        console.print(f"Ended: {unknown} {progress.answer[unknown]:.4g}, 90 % interval {low:.3g} … {high:.3g}.")


def _tops(outcome: Outcome) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    there = f"{outcome.study.task.metric} there"
    for heading in ("fraction", "samples", "best F", "90 % interval", there, "tuning factors"):
        table.add_column(heading, justify="right")
    for samples, curve in outcome.curve.items():
        low, high = curve.interval
        table.add_row(
            fraction_name(samples / outcome.study.recipe.samples),
            f"{samples}",
            f"{curve.tuning_factor:.3g}",
            f"{low:.3g} … {high:.3g}",
            metric_value(outcome.study, curve.height),
            f"{len(curve.grid)}",
        )
    return table


def _verified(outcome: Outcome) -> list[str]:
    scores = sorted(outcome.verified().items())
    means = ", ".join(
        f"{metric_value(outcome.study, sum(values) / len(values))} at F = {factor:.3g}" for factor, values in scores
    )
    return [f"At the full size: {means}."] if scores else []
