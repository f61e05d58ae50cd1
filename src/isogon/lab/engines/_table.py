"""The engines by name.

A new one is a class on the base `TrainingEngine`, a line in `ENGINE_TABLE` and its name in `Engine`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal

from isogon.errors import check_choice, check_whole
from isogon.lab.engines._engine import TrainingEngine
from isogon.lab.engines._lanes import LanesEngine
from isogon.lab.engines._local import LocalEngine
from isogon.lab.engines._workers import Job
from isogon.lab.engines.ray import RayEngine, RaySettings

Engine = Literal["local", "lanes", "ray"]


ENGINE_TABLE: Mapping[Engine, TrainingEngine] = {
    "local": LocalEngine(),
    "lanes": LanesEngine(),
    "ray": RayEngine(),
}
ENGINES: tuple[Engine, ...] = tuple(ENGINE_TABLE)

#: called with jobs, `on_event` and perhaps `claim`
Pool = Callable[..., None]


def find_engine(name: Engine) -> TrainingEngine:
    """The engine called `name`."""
    check_choice("engine", name, ENGINES)
    return ENGINE_TABLE[name]


def pool_for(engine: Engine, *, workers: int | None, device: str, ray: RaySettings | None = None) -> Pool:
    """The pool that does the jobs of `engine`, `workers` at a time: processes of this machine, or a Ray cluster.

    Without `workers`, as many as this machine has cores, or as many as the cluster takes.
    """
    chosen = find_engine(engine)
    if workers is not None:
        check_whole("workers", workers, cure="count the processes")

    def pool(jobs: Sequence[Job], **listeners: Any) -> None:
        chosen.work_through(jobs, workers=workers, device=device, ray=ray, **listeners)

    return pool


def keep_ready(engine: Engine) -> AbstractContextManager[Any]:
    """Within it, only the first use of a pool has to wait until the engine is ready."""
    return find_engine(engine).keep_ready()
