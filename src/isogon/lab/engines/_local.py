"""The engine `local`: one config in each process of this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from isogon.lab.engines._engine import TrainingEngine
from isogon.lab.engines._events import Say
from isogon.lab.engines._workers import default_workers, work_through, workers_kept
from isogon.lab.engines.ray import RaySettings


class LocalEngine(TrainingEngine):
    """Processes of this machine, one thread each."""

    def work_through(
        self,
        jobs: Sequence[Any],
        *,
        workers: int | None,
        device: str,
        ray: RaySettings | None,
        heard: Say,
        claim: Callable[[Any], bool] | None = None,
    ) -> None:
        count = min(workers or default_workers(device), len(jobs))
        work_through(jobs, workers=count, heard=heard, claim=claim)

    def kept_ready(self) -> AbstractContextManager[Any]:
        return workers_kept()
