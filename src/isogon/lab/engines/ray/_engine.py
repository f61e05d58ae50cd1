"""The engine `ray`: one config in each worker of a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from isogon.lab.engines._engine import TrainingEngine
from isogon.lab.engines._events import Say
from isogon.lab.engines.ray._pool import work_through_on_ray
from isogon.lab.engines.ray._session import RaySettings, ray_kept


class RayEngine(TrainingEngine):
    """Tasks of a Ray cluster."""

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
        settings = (ray or RaySettings()).for_device(device)
        work_through_on_ray(jobs, workers=workers, heard=heard, claim=claim, settings=settings)

    def kept_ready(self) -> AbstractContextManager[Any]:
        return ray_kept()
