"""`run`: a study from its file to its outcome. Killed at any moment, the same call goes on."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from isogon.errors import IsogonError
from isogon.lab.checkpoints import FolderLock, write_json
from isogon.lab.engines import Engine
from isogon.search.curve import Curve, fit_curve
from isogon.search.execution import train_rows
from isogon.search.grids import extension, refined
from isogon.search.ledger import Cell, Ledger, Row, StudyChangedError
from isogon.search.objective import find_objective
from isogon.search.outcome import Outcome
from isogon.search.study import Study
from isogon.search.trend import transfer_trend
from isogon.search.words import last_line

STUDY, TRIALS, DATABASE = "study.json", "trials", "study.db"
#: times that a grid may grow at its edge
_EXTENSIONS = 3

Tell = Callable[[str], None]


def run(
    study: Study | str | os.PathLike[str],
    out: str | os.PathLike[str] = "search",
    *,
    engine: Engine | None = None,
    workers: int | None = None,
    fresh: bool = False,
    progress: bool = True,
    tell: Tell | None = None,
) -> Outcome:
    """Search the tuning factor on fractions of the data and carry it to the full run (Yun et al., section 6).

    The grid is trained at the smallest fraction, the three cells round its top at the next ones, each with all seeds on
    nested subsets for the same number of epochs. A top at the grid's edge makes the grid grow. The tops, fitted with
    their uncertainty, are carried to the full size by a trend that is shrunk towards none.

    Args:
        study: a `Study` or the path of its TOML file.
        out: the folder of the study: trials, storage, outcome. The same call goes on there.
        engine, workers: instead of those of the study.
        fresh: forget what `out` and the storage hold of this study and begin anew.
        progress: bars on a terminal, a line a trial elsewhere.
        tell: called with a sentence whenever the search decides something.
    """
    study = study if isinstance(study, Study) else Study.read(study)
    if study.task.objective is not None:
        find_objective(study.task.objective)  # a slip in its name shows here, not in every trial
    folder = Path(out)
    if fresh:
        _forget(folder, study)
    folder.mkdir(parents=True, exist_ok=True)
    lock = FolderLock(folder)
    try:
        ledger = Ledger(*storage_of(study, folder), study.key)
        write_json(folder / STUDY, study.model_dump(mode="json"))
        (folder / STUDY).chmod(0o600)  # the storage's address may hold a password

        def train(cells: Iterable[Cell]) -> list[Row]:
            wanted = set(cells)
            ledger.plan(sorted(wanted, key=lambda cell: (cell.tuning_factor, cell.seed)))
            missing = [row for row in ledger.open_rows() if row.cell in wanted]
            train_rows(
                study,
                ledger,
                missing,
                folder / TRIALS,
                engine=engine or study.run.engine,
                workers=workers or study.run.workers,
                progress=progress,
            )
            return [row for row in ledger.rows() if row.cell in wanted]

        curves = _curves(study, train, tell or (lambda sentence: None))
        trend = transfer_trend(curves, study.recipe.samples)
        if study.search.verify:
            factors = {trend.tuning_factor, *trend.interval}
            train(_cells(study, 1.0, sorted(factors), purpose="verify"))
        outcome = Outcome(study, curves, trend, ledger.rows())
        outcome.save(folder)
        return outcome
    finally:
        lock.release()


def _curves(study: Study, train: Callable[[Iterable[Cell]], list[Row]], tell: Tell) -> dict[int, Curve]:
    """The curve at each fraction, smallest first."""
    grid: Sequence[float] = study.search.first_grid
    curves: dict[int, Curve] = {}
    for fraction in study.search.fractions:
        samples = study.samples_at(fraction)
        tell(f"{samples} samples: {len(grid)} tuning factors from {min(grid):.3g} to {max(grid):.3g}")
        curve = _fitted(train(_cells(study, fraction, grid)))
        for _ in range(_EXTENSIONS):
            more = extension(curve)
            if not more:
                break
            tell(f"{samples} samples: the top is at the grid's {curve.edge} edge, adding {', '.join(_short(more))}")
            grid = sorted({*grid, *more})
            curve = _fitted(train(_cells(study, fraction, grid)))
        low, high = curve.interval
        tell(f"{samples} samples: best tuning factor {curve.tuning_factor:.3g} ({low:.3g} to {high:.3g})")
        if curve.flat:
            tell(f"{samples} samples: the curve is flat within its noise; {curve.seeds_needed} seeds would resolve it")
        curves[samples] = curve
        grid = refined(curve)
    return curves


def _cells(study: Study, fraction: float, grid: Sequence[float], purpose: str = "search") -> list[Cell]:
    samples = study.samples_at(fraction)
    return [Cell(factor, samples, fraction, seed, purpose) for factor in grid for seed in range(study.search.seeds)]


def _fitted(rows: Sequence[Row]) -> Curve:
    alive = [row for row in rows if row.accuracy is not None]
    if len({row.cell.tuning_factor for row in alive}) < 3:
        first = next((row.error for row in rows if row.error), None)
        reason = f" (the first error: {last_line(first)})" if first else ""
        lost = len(rows) - len(alive)
        raise IsogonError(
            f"{lost} of {len(rows)} trials at {rows[0].cell.samples} samples diverged or failed, and fewer than three "
            f"tuning factors are left{reason}: mend the task, or search at smaller tuning factors."
        )
    return fit_curve(
        (row.cell.tuning_factor, row.cell.seed, float("nan") if row.accuracy is None else row.accuracy) for row in rows
    )


def _short(factors: Iterable[float]) -> list[str]:
    return [f"{factor:.3g}" for factor in factors]


def storage_of(study: Study, folder: Path) -> tuple[str, str]:
    """The storage's address and the study's name there: a file of its own has one study, whatever the folder's name."""
    if study.run.storage == "sqlite":
        return f"sqlite:///{folder.resolve() / DATABASE}", "search"
    return study.run.storage, folder.resolve().name


def _forget(folder: Path, study: Study) -> None:
    if folder.exists():
        if not (folder / STUDY).exists() and any(folder.iterdir()):
            raise StudyChangedError(f"{folder} holds something else than a study: choose another folder.")
        FolderLock(folder).release()  # not under the feet of another process
        shutil.rmtree(folder)
    if study.run.storage != "sqlite":
        Ledger.delete(*storage_of(study, folder))
