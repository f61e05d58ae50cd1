"""Trains the trials of a search by the lab's engines, and records each as soon as it ends.

A trial is claimed at the last moment, so that coordinators which share a storage share the work.
"""

from __future__ import annotations

import math
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
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
    Event,
    EventListener,
    FolderLock,
    ObjectiveEnded,
    Run,
    RunFailed,
    TrainingEnded,
    TrainingEpoch,
    ValueRefused,
    ValueReported,
    board_of,
    default_device,
    full_disk,
    pool_for,
    refuse_lost_device,
    run_all,
)
from isogon.recipe import Recipe
from isogon.search.study import MetricError, Pruned, Study, TaskTable, Trial, value_of
from isogon.search.trials._ledger import Ledger, PlannedTrial, StoredTrial, TrialStatus
from isogon.search.trials._pruning import PruningJudge, judge_of

RESULT = "result.json"
#: seconds between looks at trials that other coordinators are running
POLL = 2.0


@dataclass(frozen=True)
class _Execution:
    """Where and with what the trials of a study are trained, and who keeps and prunes them."""

    study: Study
    ledger: Ledger
    folder: Path
    engine: Engine
    workers: int | None
    progress: bool

    @cached_property
    def judge(self) -> PruningJudge:
        return judge_of(self.study, self.ledger)

    def end_unmakeable(self, trial: StoredTrial, error: ArgumentError) -> None:
        """A tuning factor beyond what the recipe or the schedule allows is that trial's failure."""
        if self.ledger.claim(trial):
            self.ledger.end(trial, "failed", None, images=0, seconds=0.0, error=str(error))
            self.judge.end(trial, "failed", None)


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
    """The trials that `planned` became once all of them have ended, trained here or by other coordinators."""
    wanted = dict.fromkeys(sorted(planned, key=lambda trial: (trial.tuning_factor, trial.seed)))
    announced = 0
    while True:
        ledger.plan(wanted)
        trials = [trial for trial in ledger.trials() if trial.planned in wanted]
        ours = [trial for trial in trials if ledger.is_open(trial)]
        if ours:
            # Each in a folder of its own below `folder`; only those that can be claimed.
            train = _train_configs if study.task.objective is None else _call_objective
            train(_Execution(study, ledger, folder, engine, workers, progress), ours)
            continue
        others = sum(trial.status == "running" for trial in trials)
        if not others:
            return trials
        if others != announced:
            tell(f"waiting for {others} trial{'s' if others > 1 else ''} of other coordinators")
            announced = others
        time.sleep(POLL)
        ledger.take_over()


def _train_configs(execution: _Execution, trials: Sequence[StoredTrial]) -> None:
    study, ledger, folder, judge = execution.study, execution.ledger, execution.folder, execution.judge
    by_config: dict[Config, StoredTrial] = {}
    for trial in trials:
        planned = trial.planned
        try:
            config = study.config(tuning_factor=planned.tuning_factor, samples=planned.samples, seed=planned.seed)
        except ArgumentError as error:
            execution.end_unmakeable(trial, error)
        else:
            by_config[config] = trial
    recorded: set[Config] = set()
    task = study.task

    def record(run: Run) -> None:
        if run.config not in recorded:
            recorded.add(run.config)
            value = run.accuracy if task.metric == "accuracy" else run.test_loss
            score = None if math.isnan(value) else task.score(value)
            trial = by_config[run.config]
            ledger.end(trial, run.status, score, images=run.images, seconds=run.seconds, error=run.error)
            judge.end(trial, run.status, score)

    def handle(event: TrainingEpoch | TrainingEnded) -> None:
        if isinstance(event, TrainingEpoch):
            trial, epoch = by_config[event.config], int(event.row["epoch"])
            score = task.score(event.row[f"test_{task.metric}"])
            ledger.report(trial, epoch, score)
            judge.report(trial, epoch, score, folder / event.config.name)
        elif event.run.status != "failed":
            record(event.run)

    # Ended, but the search was killed before it was recorded.
    ended = {config: run for config in by_config if (run := Run.read_if_ended(folder / config.name)) is not None}
    for config, run in ended.items():
        if ledger.claim(by_config[config]):
            record(run)
    missing = [config for config in by_config if config not in ended]
    for run in run_all(
        missing,
        engine=execution.engine,
        out=folder,
        workers=execution.workers,
        device=study.run.device,
        progress=execution.progress,
        news=handle,
        claim=lambda config: ledger.claim(by_config[config]),
        ray=study.run.ray.settings,
    ):
        record(run)


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

    def move_to(self, out: str) -> Self:
        return replace(self, out=out)

    def work(self, emit: EventListener) -> None:
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
                emit(ValueReported(self.key, epoch, self.task.check_value(number)))
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
            emit(ObjectiveEnded(self.key, result))
        except MetricError as error:
            emit(ValueRefused(self.key, str(error)))
        except Exception as error:  # an error of the objective is a failure of that trial
            refuse_lost_device(error)
            full = full_disk(error, folder)
            if full is None:
                emit(RunFailed(self.key, traceback.format_exc()))
            else:
                emit(DiskFull(self.key, full))
        finally:
            if lock is not None:
                lock.release()


def _call_objective(execution: _Execution, trials: Sequence[StoredTrial]) -> None:
    study, ledger, folder, judge = execution.study, execution.ledger, execution.folder, execution.judge
    task, device = study.task, study.run.device or default_device()
    objective = task.objective
    assert objective is not None
    pool = pool_for(execution.engine, workers=execution.workers, device=device, ray=study.run.ray.settings)
    by_name = {_name(trial.planned): trial for trial in trials}

    def end(trial: StoredTrial, result: Mapping[str, Any]) -> None:
        score = None if result["value"] is None else task.score(result["value"])
        epochs = study.recipe.epochs
        status: TrialStatus = "finished" if score is not None else "diverged"
        if "pruned_after" in result:
            status, epochs = "pruned", min(epochs, result["pruned_after"])
        ledger.end(trial, status, score, images=trial.planned.samples * epochs, seconds=result["seconds"])
        judge.end(trial, status, score)

    def handle(event: Event) -> None:
        name, trial = event.key, by_name[event.key]
        if isinstance(event, ValueReported):
            ledger.report(trial, event.step, task.score(event.value))
            judge.report(trial, event.step, task.score(event.value), folder / name)
            board.epoch(name, event.step + 1, f"{event.value:.4g}")
        elif isinstance(event, ObjectiveEnded):
            end(trial, event.result)
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
            ledger.end(trial, "failed", None, images=0, seconds=0.0, error=event.error)
            board.end(name, event.error)

    jobs = []
    for name, trial in by_name.items():
        planned = trial.planned
        result = _result_of(folder / name)
        if result is not None:  # ended, but the search was killed before it was recorded
            if ledger.claim(trial):
                end(trial, result)
            continue
        try:
            recipe = study.recipe.recipe(tuning_factor=planned.tuning_factor, samples=planned.samples)
        except ArgumentError as error:
            execution.end_unmakeable(trial, error)
            continue
        jobs.append(ObjectiveJob(objective, task, name, recipe.to_dict(), planned.seed, str(folder), device))
    epochs, done = {job.key: study.recipe.epochs for job in jobs}, len(trials) - len(jobs)
    with board_of(epochs, done=done, shown=execution.progress) as board:
        if jobs:
            pool(jobs, on_event=handle, claim=lambda job: ledger.claim(by_name[job.key]))


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
