"""Trains the trials of a search by the lab's engines, and writes each down as soon as it ends."""

from __future__ import annotations

import json
import math
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from isogon.lab import Config, Run, run_all
from isogon.lab.checkpoints import FolderLock, write_json
from isogon.lab.engines import Engine, default_workers
from isogon.lab.training import default_device
from isogon.lab.workers import Say, work_through
from isogon.recipe import Recipe
from isogon.search.ledger import Cell, Ledger, Row
from isogon.search.objective import Trial, accuracy_of
from isogon.search.study import Study

RESULT = "result.json"


def train_rows(
    study: Study,
    ledger: Ledger,
    rows: Sequence[Row],
    folder: Path,
    *,
    engine: Engine,
    workers: int | None,
    progress: bool,
) -> None:
    """Train the trials `rows`, which have not ended, each in a folder of its own below `folder`."""
    for row in rows:
        if row.status == "waiting":
            ledger.claim(row)
    if study.task.objective is None:
        settings = {"engine": engine, "out": folder, "workers": workers, "device": study.run.device}
        _train_configs(study, ledger, rows, folder, partial(run_all, **settings, progress=progress))  # type: ignore[arg-type]
    else:
        _call_objective(study, study.task.objective, ledger, rows, folder, workers=workers)


def _train_configs(
    study: Study, ledger: Ledger, rows: Sequence[Row], folder: Path, run_them: Callable[..., list[Run]]
) -> None:
    by_config = {
        study.config(tuning_factor=row.cell.tuning_factor, samples=row.cell.samples, seed=row.cell.seed): row
        for row in rows
    }
    written: set[Config] = set()

    def write_down(run: Run) -> None:
        if run.config not in written:
            written.add(run.config)
            accuracy = None if math.isnan(run.accuracy) else run.accuracy
            row = by_config[run.config]
            ledger.end(row, run.status, accuracy, images=run.images, seconds=run.seconds, error=run.error)

    def news(kind: str, config: Config, content: Any) -> None:
        if kind == "epoch":
            ledger.report(by_config[config], int(content["epoch"]), float(content["test_accuracy"]))
        elif kind == "ended":
            write_down(Run.read(folder / config.name))

    # What had ended when the search was killed before it could be written down is among these too.
    for run in run_them(list(by_config), news=news):
        write_down(run)


@dataclass(frozen=True)
class ObjectiveJob:
    """A call of the user's objective in a worker. Its result is in the trial's folder before anybody hears of it."""

    objective: str
    key: str
    recipe: Mapping[str, Any]
    seed: int
    folder: str
    device: str

    @property
    def keys(self) -> list[str]:
        return [self.key]

    def work(self, say: Say) -> None:
        """Says "epoch" with a step and a value, then "ended" with the result or "failed" with the error."""
        place = Path(self.folder)
        place.mkdir(parents=True, exist_ok=True)
        lock = FolderLock(place)
        try:
            trial = Trial(
                recipe=Recipe(**self.recipe),
                seed=self.seed,
                folder=place,
                device=self.device,
                report=lambda step, value: say("epoch", self.key, (int(step), float(value))),
            )
            start = time.perf_counter()
            value = accuracy_of(self.objective, trial)
            result = {"accuracy": None if math.isnan(value) else value, "seconds": time.perf_counter() - start}
            write_json(place / RESULT, result)
            say("ended", self.key, result)
        except Exception:  # whatever the objective does is that trial's failure
            say("failed", self.key, traceback.format_exc())
        finally:
            lock.release()


def _call_objective(
    study: Study, objective: str, ledger: Ledger, rows: Sequence[Row], folder: Path, *, workers: int | None
) -> None:
    device = study.run.device or default_device()
    by_name = {_name(row.cell): row for row in rows}

    def end(row: Row, result: Mapping[str, Any]) -> None:
        status = "diverged" if result["accuracy"] is None else "finished"
        images = round(row.cell.samples * study.recipe.epochs)
        ledger.end(row, status, result["accuracy"], images=images, seconds=result["seconds"])  # type: ignore[arg-type]

    def heard(kind: str, name: str, content: Any) -> None:
        row = by_name[name]
        if kind == "epoch":
            ledger.report(row, *content)
        elif kind == "ended":
            end(row, content)
        else:
            ledger.end(row, "failed", None, images=0, seconds=0.0, error=content)

    jobs = []
    for name, row in by_name.items():
        result = folder / name / RESULT
        if result.exists():  # ended, but the search was killed before it could be written down
            end(row, json.loads(result.read_text(encoding="utf-8")))
            continue
        recipe = study.recipe.recipe(tuning_factor=row.cell.tuning_factor, samples=row.cell.samples)
        jobs.append(ObjectiveJob(objective, name, recipe.to_dict(), row.cell.seed, str(folder / name), device))
    if jobs:
        work_through(jobs, workers=min(workers or default_workers(device), len(jobs)), heard=heard)


def _name(cell: Cell) -> str:
    return f"{cell.purpose}-n{cell.samples}-f{cell.tuning_factor:.6g}-s{cell.seed}"
