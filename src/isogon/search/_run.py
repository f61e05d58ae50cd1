"""`run`: a study from its file to its outcome. Killed at any moment, the same call resumes."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from isogon.errors import IsogonError, last_line
from isogon.lab import Engine, check_names, keep_ready, naming_a_full_disk, try_out
from isogon.search._outcome import Outcome
from isogon.search._sentences import count_lost, seeds_text
from isogon.search.fit import Curve, extension, fit_curve, refine, round_factor, transfer_trend
from isogon.search.study import Study, find_objective
from isogon.search.trials import (
    TRIALS,
    Ledger,
    PlannedTrial,
    StoredTrial,
    TriedFactor,
    forget,
    open_ledger,
    propose,
    train_trials,
)

#: times that a grid may grow at its edge
_EXTENSIONS = 3

MessageListener = Callable[[str], None]
Train = Callable[[Iterable[PlannedTrial]], list[StoredTrial]]


def run(
    study: Study | str | os.PathLike[str],
    out: str | os.PathLike[str] = "search",
    *,
    engine: Engine | None = None,
    workers: int | None = None,
    fresh: bool = False,
    retry: bool = False,
    progress: bool = True,
    tell: MessageListener | None = None,
) -> Outcome:
    """Search the tuning factor on fractions of the data and carry it to the full run (Yun et al., section 6).

    The grid is trained at the smallest fraction, the three cells round its top at the next ones, each with all seeds on
    nested subsets for the same number of epochs. A top at the grid's edge makes the grid grow. The tops, fitted with
    their uncertainty, are carried to the full size by a trend that is shrunk towards none.

    Args:
        study: a `Study` or the path of its TOML file.
        out: the folder of the study: trials, storage, outcome. The same call resumes there.
        engine, workers: replace those of the study.
        fresh: forget what `out` and the storage hold of this study and start again.
        retry: try failed trials again.
        progress: bars on a terminal, one line per trial elsewhere.
        tell: called with a sentence whenever the search decides something.
    """
    study = study if isinstance(study, Study) else Study.read(study)
    folder, report = Path(out), tell or (lambda sentence: None)
    engine = engine or study.run.engine
    _try_task(study, engine)
    with naming_a_full_disk(folder), keep_ready(engine):
        if fresh:
            forget(study, folder)
        with open_ledger(study, folder, report) as ledger:
            report(f"the search {study.task.direction}s {study.task.metric}")
            if retry:
                report(f"{ledger.retry()} failed trials are tried again")
            train = partial(
                train_trials,
                study,
                ledger,
                folder=folder / TRIALS,
                engine=engine,
                workers=workers or study.run.workers,
                progress=progress,
                tell=report,
            )
            curves = _fit_curves(study, ledger, train, report)
            trend = transfer_trend(curves, study.recipe.samples)
            if study.search.verify:
                factors = {round_factor(factor) for factor in (trend.tuning_factor, *trend.interval)}
                train(_plan(study, 1.0, sorted(factors), purpose="verify"))
            outcome = Outcome(study, curves, trend, ledger.trials())
            outcome.save(folder)
            return outcome


def _try_task(study: Study, engine: Engine) -> None:
    """Show a mistake in the objective, the network or the data here, not in every trial."""
    if study.task.objective is not None:
        find_objective(study.task.objective)
        return
    largest = 1.0 if study.search.verify else study.search.fractions[-1]
    config = study.config(tuning_factor=study.search.first_grid[0], samples=study.samples_at(largest), seed=0)
    # On a cluster only the workers may have the data.
    (check_names if engine == "ray" else try_out)(config)


def _fit_curves(study: Study, ledger: Ledger, train: Train, tell: MessageListener) -> dict[int, Curve]:
    """The curve at each fraction, smallest first."""
    grid: Sequence[float] = study.search.first_grid
    # Factors that a sampler chose are on no grid; a step is that of the grid they replace.
    step = None if study.search.sampler == "grid" else math.log2(max(grid) / min(grid)) / (len(grid) - 1)
    curves: dict[int, Curve] = {}
    for fraction in study.search.fractions:
        samples = study.samples_at(fraction)
        if study.search.sampler != "grid" and not curves:
            grid = _train_proposals(study, ledger, train, tell)
        else:
            tell(f"{samples} samples: {len(grid)} tuning factors from {min(grid):.3g} to {max(grid):.3g}")
        curve = _fit(train(_plan(study, fraction, grid)), step)
        for _ in range(_EXTENSIONS):
            more = extension(curve)
            if not more:
                break
            tell(f"{samples} samples: the top is at the grid's {curve.edge} edge, adding {', '.join(_short(more))}")
            grid = sorted({*grid, *more})
            curve = _fit(train(_plan(study, fraction, grid)), step)
        low, high = curve.interval
        tell(f"{samples} samples: best tuning factor {curve.tuning_factor:.3g} ({low:.3g} to {high:.3g})")
        if curve.flat and curve.seeds_needed is not None:
            needed = seeds_text(curve.seeds_needed)
            tell(f"{samples} samples: the curve is flat within its noise; {needed} would resolve it")
        curves[samples] = curve
        grid = refine(curve)
    return curves


def _train_proposals(study: Study, ledger: Ledger, train: Train, tell: MessageListener) -> list[float]:
    """Tuning factors for the smallest fraction by the study's sampler, each trained before the next is chosen."""
    search, fraction = study.search, study.search.fractions[0]
    limits = min(search.first_grid), max(search.first_grid)
    tried: list[TriedFactor] = []
    for place in range(search.first_count):
        factor = ledger.proposal(place, partial(propose, search.sampler, tuple(tried), limits))
        tell(
            f"{study.samples_at(fraction)} samples: tuning factor {factor:.3g}, proposal {place + 1} of "
            f"{search.first_count} by {search.sampler}"
        )
        trials = train(_plan(study, fraction, [factor]))
        scores = [trial.score for trial in trials if trial.score is not None]
        tried.append(TriedFactor(factor, sum(scores) / len(scores) if scores else None))
    return sorted(trial.tuning_factor for trial in tried)


def _plan(study: Study, fraction: float, grid: Sequence[float], purpose: str = "search") -> list[PlannedTrial]:
    samples = study.samples_at(fraction)
    return [
        PlannedTrial(factor, samples, fraction, seed, purpose) for factor in grid for seed in range(study.search.seeds)
    ]


def _fit(trials: Sequence[StoredTrial], step: float | None) -> Curve:
    alive = [trial for trial in trials if trial.score is not None]
    if len({trial.planned.tuning_factor for trial in alive}) < 3:
        first = next((trial.error for trial in trials if trial.error), None)
        reason = f" (the first error: {last_line(first)})" if first else ""
        lost = len(trials) - len(alive)
        # Trials that diverged are results, and stay.
        option = "--retry" if any(trial.status == "failed" for trial in trials) else "--fresh"
        samples = trials[0].planned.samples
        raise IsogonError(
            f"{lost} of {len(trials)} trials at {samples} samples were lost ({count_lost(trials)}), and fewer than "
            f"three tuning factors are left{reason}: fix the task and add {option}, or search at smaller factors."
        )
    points = [
        (trial.planned.tuning_factor, trial.planned.seed, math.nan if trial.score is None else trial.score)
        for trial in trials
    ]
    return fit_curve(points, step=step)


def _short(factors: Iterable[float]) -> list[str]:
    return [f"{factor:.3g}" for factor in factors]
