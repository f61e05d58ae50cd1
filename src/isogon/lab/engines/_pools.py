"""`pool_for`: who works through the jobs of an engine."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal

from isogon.errors import check_choice, check_whole
from isogon.lab.engines._workers import work_through, workers_kept

if TYPE_CHECKING:
    from isogon.lab.engines.ray import RaySettings

Engine = Literal["local", "lanes", "ray"]
ENGINES: tuple[Engine, ...] = ("local", "lanes", "ray")

#: called with jobs, `heard` and perhaps `claim`, like `lab.workers.work_through`
Pool = Callable[..., None]


def pool_for(engine: Engine, *, workers: int | None, device: str, ray: RaySettings | None = None) -> Pool:
    """What does the jobs of `engine`, `workers` at a time: processes of this machine, or a Ray cluster.

    Without `workers`, as many as this machine has cores, or as many as the cluster takes.
    """
    check_choice("engine", engine, ENGINES)
    if workers is not None:
        check_whole("workers", workers, cure="count the processes")

    def on_ray(jobs: Sequence[Any], **listeners: Any) -> None:
        from isogon.lab.engines.ray import RaySettings, work_through_on_ray

        work_through_on_ray(jobs, workers=workers, settings=(ray or RaySettings()).for_device(device), **listeners)

    def here(jobs: Sequence[Any], **listeners: Any) -> None:
        work_through(jobs, workers=min(workers or default_workers(device), len(jobs)), **listeners)

    return on_ray if engine == "ray" else here


def kept_ready(engine: Engine) -> AbstractContextManager[Any]:
    """Within it, only the first use of a pool has to wait until the engine is ready."""
    if engine != "ray":
        return workers_kept()
    from isogon.lab.engines.ray import ray_kept

    return ray_kept()


def default_workers(device: str) -> int:
    """The cores that this process may use; one process for a GPU."""
    if device.startswith("cuda"):
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
