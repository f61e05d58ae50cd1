"""The engine `local`: one config in each process of this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from isogon.lab.engines._engine import TrainingEngine
from isogon.lab.engines._events import EventListener
from isogon.lab.engines._placement import gpus
from isogon.lab.engines._workers import default_workers, keep_workers, work_through
from isogon.lab.engines.ray import RaySettings


class LocalEngine(TrainingEngine):
    """Processes of this machine, one thread each; on several GPUs, each process on one of them."""

    def work_through(
        self,
        jobs: Sequence[Any],
        *,
        workers: int | None,
        device: str,
        ray: RaySettings | None,
        on_event: EventListener,
        claim: Callable[[Any], bool] | None = None,
    ) -> None:
        count = min(workers or default_workers(device), len(jobs))
        work_through(jobs, workers=count, on_event=on_event, claim=claim, places=gpus(device))

    def keep_ready(self) -> AbstractContextManager[Any]:
        return keep_workers()
