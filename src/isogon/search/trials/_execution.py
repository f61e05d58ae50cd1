"""Trains the trials of a search by the lab's engines, and records each as soon as it ends.

A trial is claimed at the last moment, so that drivers which share a storage share the work.
"""

from __future__ import annotations

import math
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

from isogon.errors import ArgumentError, check_whole
from isogon.files import read_json, write_json
from isogon.lab import (
    STOP,
    Config,
    DiskFull,
    DiskFullError,
    Engine,
    EpochEnded,
    Event,
    FolderLock,
    Run,
    RunEnded,
    RunFailed,
    Say,
    TrainingEnded,
    TrainingEpoch,
    ValueRefused,
    board_of,
    default_device,
    full_disk,
    pool_for,
    run_all,
)
from isogon.recipe import Recipe
from isogon.search.study import MetricError, Pruned, Study, TaskTable, Trial, value_of
from isogon.search.trials._ledger import Ledger, PlannedTrial, Status, StoredTrial
from isogon.search.trials._pruning import Judge, judge_of

RESULT = "result.json"
#: seconds between looks at trials that other drivers are running
POLL = 2.0


def train_trials(
    study: Study,
    ledger: Ledger,
    planned: Iterable[PlannedTrial],
    *,
    folder: Path,
    engine: Engine,
    workers: int | None,
    progress: bool,
    tell: Callable[[str], None],
) -> list[StoredTrial]:
    """The rows of `planned` once all of them have ended, trained here or by other drivers."""
    wanted = dict.fromkeys(sorted(planned, key=lambda trial: (trial.tuning_factor, trial.seed)))
    announced = 0
    while True:
        ledger.plan(wanted)
        rows = [row for row in ledger.rows() if row.planned in wanted]
        ours = [row for row in rows if ledger.is_open(row)]
        if ours:
            train_rows(study, ledger, ours, folder, engine=engine, workers=workers, progress=progress)
            continue
        others = sum(row.status == "running" for row in rows)
        if not others:
            return rows
        if others != announced:
            tell(f"waiting for {others} trial{'s' if others > 1 else ''} of other drivers")
            announced = others
        time.sleep(POLL)
        ledger.take_over()


def train_rows(
    study: Study,
    ledger: Ledger,
    rows: Sequence[StoredTrial],
    folder: Path,
    *,
    engine: Engine,
    workers: int | None,
    progress: bool,
) -> None:
    """Train those of `rows` that can be claimed, each in a folder of its own below `folder`."""
    judge = judge_of(study, ledger)
    if study.task.objective is None:
        run_them = partial(
            run_all,
            engine=engine,
            out=folder,
            workers=workers,
            device=study.run.device,
            progress=progress,
            ray=study.run.ray.settings,
        )
        _train_configs(study, ledger, judge, rows, folder, run_them)
    else:
        _call_objective(
            study, study.task.objective, ledger, judge, rows, folder, engine=engine, workers=workers, progress=progress
        )


def _train_configs(
    study: Study,
    ledger: Ledger,
    judge: Judge,
    rows: Sequence[StoredTrial],
    folder: Path,
    run_them: Callable[..., list[Run]],
) -> None:
    by_config: dict[Config, StoredTrial] = {}
    for row in rows:
        try:
            planned = row.planned
            by_config[study.config(tuning_factor=planned.tuning_factor, samples=planned.samples, seed=planned.seed)] = (
                row
            )
        except ArgumentError as error:
            _end_unmakeable(ledger, judge, row, error)
    recorded: set[Config] = set()
    task = study.task

    def record(run: Run) -> None:
        if run.config not in recorded:
            recorded.add(run.config)
            value = run.accuracy if task.metric == "accuracy" else run.test_loss
            score = None if math.isnan(value) else task.score(value)
            row = by_config[run.config]
            ledger.end(row, run.status, score, images=run.images, seconds=run.seconds, error=run.error)
            judge.end(row, run.status, score)

    def handle(event: TrainingEpoch | TrainingEnded) -> None:
        if isinstance(event, TrainingEpoch):
            row, epoch = by_config[event.config], int(event.row["epoch"])
            score = task.score(event.row[f"test_{task.metric}"])
            ledger.report(row, epoch, score)
            judge.report(row, epoch, score, folder / event.config.name)
        elif event.run.status != "failed":
            record(event.run)

    # Ended, but the search was killed before it was recorded.
    ended = {config: run for config in by_config if (run := Run.read_if_ended(folder / config.name)) is not None}
    for config, run in ended.items():
        if ledger.claim(by_config[config]):
            record(run)
    missing = [config for config in by_config if config not in ended]
    for run in run_them(missing, claim=lambda config: ledger.claim(by_config[config]), news=handle):
        record(run)


def _end_unmakeable(ledger: Ledger, judge: Judge, row: StoredTrial, error: ArgumentError) -> None:
    """A tuning factor beyond what the recipe or the schedule allows is that trial's failure."""
    if ledger.claim(row):
        ledger.end(row, "failed", None, images=0, seconds=0.0, error=str(error))
        judge.end(row, "failed", None)


@dataclass(frozen=True)
class ObjectiveJob:
    """A call of the user's objective in a worker, in the folder `key` below `out`.

    Its result is in that folder before it is reported.
    """

    objective: str
    task: TaskTable
    key: str
    recipe: Mapping[str, Any]
    seed: int
    out: str
    device: str

    @property
    def keys(self) -> list[str]:
        return [self.key]

    def moved_to(self, out: str) -> Self:
        return replace(self, out=out)

    def work(self, say: Say) -> None:
        """Reports a step and a value for each epoch, then the result; a value that cannot be the metric is refused."""
        folder = Path(self.out) / self.key
        lock: FolderLock | None = None
        try:
            # The objective's files are its own, whatever their names; result, lock and stop sign lie above.
            private = folder / self.key
            private.mkdir(parents=True, exist_ok=True)
            lock = FolderLock(folder)

            def report(step: int, value: float) -> None:
                epoch = check_whole("step", step, low=0, cure="count epochs from 0")
                number = math.nan if math.isinf(float(value)) else float(value)  # it diverged
                say(EpochEnded(self.key, (epoch, self.task.check_value(number))))
                if (folder / STOP).exists():
                    raise Pruned(epoch + 1)

            trial = Trial(
                recipe=Recipe(**self.recipe), seed=self.seed, folder=private, device=self.device, report=report
            )
            start = time.perf_counter()
            result: dict[str, Any]
            try:
                value = self.task.check_value(value_of(self.objective, trial, self.task.metric))
                result = {"value": None if math.isnan(value) else value}
            except Pruned as stop:
                result = {"value": None, "pruned_after": stop.epochs}
            result["seconds"] = time.perf_counter() - start
            write_json(folder / RESULT, result)
            say(RunEnded(self.key, result))
        except MetricError as error:
            say(ValueRefused(self.key, str(error)))
        except Exception as error:  # an error of the objective is a failure of that trial
            full = full_disk(error, folder)
            if full is None:
                say(RunFailed(self.key, traceback.format_exc()))
            else:
                say(DiskFull(self.key, full))
        finally:
            if lock is not None:
                lock.release()


def _call_objective(
    study: Study,
    objective: str,
    ledger: Ledger,
    judge: Judge,
    rows: Sequence[StoredTrial],
    folder: Path,
    *,
    engine: Engine,
    workers: int | None,
    progress: bool,
) -> None:
    task, device = study.task, study.run.device or default_device()
    pool = pool_for(engine, workers=workers, device=device, ray=study.run.ray.settings)
    by_name = {_name(row.planned): row for row in rows}

    def end(row: StoredTrial, result: Mapping[str, Any]) -> None:
        score = None if result["value"] is None else task.score(result["value"])
        epochs = study.recipe.epochs
        status: Status = "finished" if score is not None else "diverged"
        if "pruned_after" in result:
            status, epochs = "pruned", min(epochs, result["pruned_after"])
        ledger.end(row, status, score, images=row.planned.samples * epochs, seconds=result["seconds"])
        judge.end(row, status, score)

    def handle(event: Event) -> None:
        name, row = event.key, by_name[event.key]
        if isinstance(event, EpochEnded):
            step, value = event.report
            ledger.report(row, step, task.score(value))
            judge.report(row, step, task.score(value), folder / name)
            board.epoch(name, step + 1, f"{value:.4g}")
        elif isinstance(event, RunEnded):
            end(row, event.result)
            value = event.result["value"]
            if value is None:
                board.end(name, "pruned" if "pruned_after" in event.result else "diverged")
            else:
                board.end(name, f"{value:.4g}", best=(task.score(value), f"{value:.4g}"))
        elif isinstance(event, DiskFull):
            raise DiskFullError(event.where)
        elif isinstance(event, ValueRefused):  # every other trial would fail too
            raise MetricError(f"The objective {objective} gave what the study did not ask for: {event.reason}")
        elif isinstance(event, RunFailed):
            ledger.end(row, "failed", None, images=0, seconds=0.0, error=event.error)
            board.end(name, event.error)

    jobs = []
    for name, row in by_name.items():
        result = _result_of(folder / name)
        if result is not None:  # ended, but the search was killed before it was recorded
            if ledger.claim(row):
                end(row, result)
            continue
        try:
            recipe = study.recipe.recipe(tuning_factor=row.planned.tuning_factor, samples=row.planned.samples)
        except ArgumentError as error:
            _end_unmakeable(ledger, judge, row, error)
            continue
        jobs.append(ObjectiveJob(objective, task, name, recipe.to_dict(), row.planned.seed, str(folder), device))
    with board_of({job.key: study.recipe.epochs for job in jobs}, done=len(rows) - len(jobs), shown=progress) as board:
        if jobs:
            pool(jobs, heard=handle, claim=lambda job: ledger.claim(by_name[job.key]))


def _result_of(folder: Path) -> dict[str, Any] | None:
    """The result of an objective that has ended in `folder`; a damaged one is removed, so that it is called again."""
    file = folder / RESULT
    if not file.exists():
        return None
    try:
        result = read_json(file, RESULT)
        result.setdefault("value", result.pop("accuracy", None))  # its name in isogon 0.1
        if not isinstance(result["seconds"], float | int) or not isinstance(result["value"], float | int | None):
            raise TypeError
    except (ArgumentError, KeyError, TypeError):
        warnings.warn(f"{file} is damaged: the objective is called again.", stacklevel=2)
        file.unlink(missing_ok=True)
        return None
    return result


def _name(trial: PlannedTrial) -> str:
    return f"{trial.purpose}-n{trial.samples}-f{trial.tuning_factor:.6g}-s{trial.seed}"
