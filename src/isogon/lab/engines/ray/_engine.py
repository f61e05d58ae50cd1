"""The engine `ray`: one config in each worker of a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from isogon.lab.engines._engine import TrainingEngine
from isogon.lab.engines._events import EventListener
from isogon.lab.engines.ray._pool import work_through_on_ray
from isogon.lab.engines.ray._session import RaySettings, keep_ray


class RayEngine(TrainingEngine):
    """Tasks of a Ray cluster."""

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
        settings = (ray or RaySettings()).for_device(device)
        work_through_on_ray(jobs, workers=workers, on_event=on_event, claim=claim, settings=settings)

    def keep_ready(self) -> AbstractContextManager[Any]:
        return keep_ray()
