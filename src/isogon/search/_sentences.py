"""An outcome in sentences, for the terminal and the page alike."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from isogon.errors import last_line
from isogon.search._outcome import LOST, Outcome
from isogon.search.fit import MOST_SEEDS
from isogon.search.study import Study
from isogon.search.trials import StoredTrial


def remarks(outcome: Outcome) -> list[str]:
    """Where the answer is weak, each with what would make it stronger."""
    sentences = []
    seeds = outcome.study.search.seeds
    for samples, curve in outcome.curve.items():
        if curve.edge is not None:
            sentences.append(
                f"{samples} samples: the top is at the grid's {curve.edge} edge, where the grid grew no farther; "
                f"the best tuning factor may lie beyond {curve.tuning_factor:.3g}."
            )
        if curve.seeds_needed is not None:
            shape = "flat within its noise" if curve.flat else "noisy"
            sentences.append(
                f"{samples} samples: the curve is {shape}; {seeds_text(curve.seeds_needed)} instead of {seeds} would "
                "resolve it to one step of the grid."
            )
    lost = lost_sentence(outcome.trials)
    return [*sentences, lost] if lost else sentences


def lost_sentence(trials: Sequence[StoredTrial]) -> str | None:
    """How many trials diverged, failed and were pruned, and the first error; None where all went well."""
    counts = count_lost(trials)
    if not counts:
        return None
    first = next((trial.error for trial in trials if trial.error), None)
    error = f"; the first error: {last_line(first)}" if first else ""
    return f"Of {len(trials)} trials {counts}; they are left out of the means{error}."


def count_lost(trials: Sequence[StoredTrial]) -> str:
    """The lost trials by status, as text; empty where none was lost."""
    counts = {status: sum(trial.status == status for trial in trials) for status in LOST}
    return ", ".join(f"{count} {status}" for status, count in counts.items() if count)


def loss_sentence(outcome: Outcome) -> str:
    """The cost of being off by a factor 2, by the curve of the largest fraction."""
    samples, curve = max(outcome.curve.items())
    below, above = (difference(outcome.study, loss) for loss in curve.losses)
    metric = outcome.study.task.metric
    return f"Half the best value would cost {below} of {metric}, twice the best {above} (at {samples} samples)."


def cost_sentence(outcome: Outcome) -> str:
    cost = outcome.cost
    grid = "the same grid takes" if outcome.study.search.sampler == "grid" else "as many tuning factors take"
    verified = f"; verification took {cost.verification_images:,} more" if cost.verification_images else ""
    return (
        f"The search saw {cost.images:,} images, {cost.share:.3g} of the {cost.full_grid_images:,} that {grid} "
        f"on the full data{verified}. All trials together trained for {cost.seconds:.0f} s."
    )


def trend_sentence(outcome: Outcome) -> str:
    trend = outcome.trend
    return (
        f"From {' and '.join(map(str, trend.sizes))} samples to {trend.samples} with log₂ F* rising by "
        f"{trend.slope:.2f} ± {trend.slope_spread:.2f} for each doubling of the data."
    )


def metric_value(study: Study, score: float) -> str:
    """The metric behind a trial's score: an accuracy of the lab, a part of 1, in per cent, all others as they are."""
    return f"{100 * score:.2f} %" if in_per_cent(study) else f"{study.task.score(score):.4g}"


def difference(study: Study, scores: float) -> str:
    """A difference of two scores."""
    return f"{100 * scores:.2f} points" if in_per_cent(study) else f"{scores:.4g}"


def in_per_cent(study: Study) -> bool:
    return study.task.objective is None and study.task.metric == "accuracy"


def seeds_text(needed: int) -> str:
    """
    >>> seeds_text(12), seeds_text(MOST_SEEDS)
    ('12 seeds', 'more than 100 seeds')
    """
    return f"more than {MOST_SEEDS} seeds" if needed >= MOST_SEEDS else f"{needed} seeds"


def fraction_name(fraction: float) -> str:
    """
    >>> fraction_name(0.0625), fraction_name(0.3), fraction_name(1.0)
    ('1/16', '3/10', '1')
    """
    return str(Fraction(fraction).limit_denominator(1000))
