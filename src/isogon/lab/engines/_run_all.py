"""`run_all`: many trainings, by the engine that suits the machine."""

from __future__ import annotations

import os
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pandas as pd

from isogon.errors import ArgumentError, first_line
from isogon.files import write_whole
from isogon.lab._disk_space import DiskFullError, full_disk
from isogon.lab._progress import bar_of_runs
from isogon.lab.engines._events import (
    DiskFull,
    EpochEnded,
    Event,
    EventListener,
    News,
    RunEnded,
    RunFailed,
    TrainingEnded,
    TrainingEpoch,
)
from isogon.lab.engines._placement import refuse_lost_device
from isogon.lab.engines._table import Engine, find_engine, pool_for
from isogon.lab.gpu import lanes
from isogon.lab.run import Config, Run, default_device, train

if TYPE_CHECKING:
    from isogon.lab.engines.ray import RaySettings

ERROR = "error.txt"


def run_all(
    configs: Sequence[Config],
    engine: Engine = "local",
    out: str | os.PathLike[str] = "runs",
    *,
    workers: int | None = None,
    device: str | None = None,
    progress: bool = True,
    news: News | None = None,
    claim: Callable[[Config], bool] | None = None,
    ray: RaySettings | None = None,
) -> list[Run]:
    """Train every config in a folder of its own below `out`; their runs, in order.

    The same call again reads the runs that have ended and resumes the others. A run that fails is a `Run` with status
    `failed` and its error, also kept in its folder; it ends no other, and is tried again by the next call. A disk that
    is full fails no run: it ends the call with a `DiskFullError`.

    Args:
        engine: `local` trains one config in each worker process, `lanes` several at once (see `lab.lanes`), `ray` one
            in each worker of a Ray cluster.
        workers: processes, one thread each; the cores this process may use, or 1 on a GPU, or what the Ray cluster
            takes, unless given.
        device: `cuda` where there is one, else `cpu`. `cuda` is all GPUs that are visible, with a process for each;
            `cuda:1` is that one alone.
        progress: bars on a terminal, one line per run elsewhere.
        news: called with a `lab.TrainingEpoch` after each epoch and a `lab.TrainingEnded` after each run.
        claim: called with a config right before its training starts; one for which it returns False is left to others
            and is not among the runs.
        ray: where the cluster is and what a training needs of it (see `lab.RaySettings`).

    A script that calls this must do so under `if __name__ == "__main__":`, since each worker imports it.
    """
    configs = list(configs)
    device = device or default_device()
    pool = pool_for(engine, workers=workers, device=device, ray=ray)
    by_key = {config.key: config for config in configs}
    if len(by_key) < len(configs):
        given = f"{len(configs)} of which {len(by_key)} differ"
        raise ArgumentError("configs", "all different", given, "vary the seed")
    folder = Path(out)
    places = {key: folder / config.name for key, config in by_key.items()}
    # As they were when they ended: removing a folder later removes no result.
    runs = {key: run for key in by_key if (run := Run.read_if_ended(places[key])) is not None}
    missing = [config for key, config in by_key.items() if key not in runs]
    can_have = claim or (lambda config: True)
    ours = {config.key for config in configs if config not in missing and can_have(config)}
    chosen = find_engine(engine)
    units = chosen.units(missing, workers=workers, device=device, shared=claim is not None)
    jobs = [TrainingJob(tuple(unit), str(folder), device, together=chosen.together) for unit in units]
    with bar_of_runs(missing, done=len(configs) - len(missing), shown=progress) as show:

        def claim_job(job: TrainingJob) -> bool:
            job.configs = tuple(config for config in job.configs if can_have(config))
            ours.update(job.keys)
            return bool(job.configs)

        def end(run: Run) -> None:
            config = run.config
            runs[config.key] = run
            if run.status == "failed":
                places[config.key].mkdir(parents=True, exist_ok=True)
                write_whole(places[config.key] / ERROR, run.error or "")
            else:
                (places[config.key] / ERROR).unlink(missing_ok=True)
            report(TrainingEnded(config, run))

        def report(event: TrainingEpoch | TrainingEnded) -> None:
            show(event)
            if news is not None:
                news(event)

        def handle(event: Event) -> None:
            config, place = by_key[event.key], places[event.key]
            if isinstance(event, DiskFull):
                raise DiskFullError(event.where)
            if isinstance(event, EpochEnded):
                report(TrainingEpoch(config, event.row))
            elif (run := Run.read_if_ended(place)) is not None:  # also where a worker died that had other jobs
                end(run)
            elif isinstance(event, RunFailed):
                end(_failed_run(config, place, event.error))
            else:
                end(_failed_run(config, place, f"it ended, and its files in {place} were gone before they were read"))

        if jobs:
            pool(jobs, on_event=handle, claim=claim_job)
    return [runs[key] for key in by_key if key in ours]


@dataclass
class TrainingJob:
    """Configs that one worker trains, `together` or one by one, each below `out`."""

    configs: tuple[Config, ...]
    out: str
    device: str
    together: bool = False

    @property
    def keys(self) -> list[str]:
        return [config.key for config in self.configs]

    def move_to(self, out: str) -> Self:
        return replace(self, out=out)

    def split(self) -> list[Self]:
        """A job for each config."""
        return [replace(self, configs=(config,), together=False) for config in self.configs]

    def work(self, emit: EventListener) -> None:
        """Train them. A full disk is reported, and the rest is left for later."""

        def report(config: Config, row: Mapping[str, Any]) -> None:
            emit(EpochEnded(config.key, dict(row)))

        if self.together and len(self.configs) > 1:
            try:
                for run in lanes(self.configs, self.out, device=self.device, report=report):
                    emit(RunEnded(run.config.key, run.status))
                return
            except Exception as error:  # one of them; alone, each resumes from its checkpoint and only that one fails
                refuse_lost_device(error)
                if full_disk(error, self.out) is None:
                    reason = f"{type(error).__name__}: {first_line(error)}"
                    warnings.warn(f"Lanes train one by one, since one of them failed ({reason}).", stacklevel=2)
        for config in self.configs:
            place = os.path.join(self.out, config.name)
            try:
                run = train(config, place, device=self.device, progress=False, report=partial(report, config))
                emit(RunEnded(config.key, run.status))
            except Exception as error:  # an error of a config is a failure of that run
                refuse_lost_device(error)
                full = full_disk(error, self.out)
                if full is not None:
                    emit(DiskFull(config.key, full))
                    return
                emit(RunFailed(config.key, traceback.format_exc()))


def _failed_run(config: Config, folder: Path, error: str) -> Run:
    return Run(config=config, status="failed", epochs=pd.DataFrame(), folder=folder, error=error)
