"""The engines by name.

A new one is a class with what `TrainingEngine` asks for, a line in `ENGINE_TABLE` and its name in `Engine`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal, Protocol

from isogon.errors import check_choice, check_whole
from isogon.lab.engines._lanes import LanesEngine
from isogon.lab.engines._local import LocalEngine
from isogon.lab.engines._workers import Job
from isogon.lab.engines.ray import RayEngine, RaySettings
from isogon.lab.run import Config

if TYPE_CHECKING:
    from isogon.lab.engines._events import Say

Engine = Literal["local", "lanes", "ray"]


class TrainingEngine(Protocol):
    """Who does jobs, and how configs become jobs."""

    #: whether the configs of one job train at once
    together: bool

    def units(self, configs: Sequence[Config], *, workers: int | None, device: str, shared: bool) -> list[list[Config]]:
        """The configs of each job; `shared` where other drivers may claim some of them."""

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
        """Do all jobs, `workers` at a time (as many as suit where None), and pass on what they say."""

    def kept_ready(self) -> AbstractContextManager[Any]:
        """Within it, only the first use has to wait until the engine is ready."""


ENGINE_TABLE: Mapping[Engine, TrainingEngine] = {
    "local": LocalEngine(),
    "lanes": LanesEngine(),
    "ray": RayEngine(),
}
ENGINES: tuple[Engine, ...] = tuple(ENGINE_TABLE)

#: called with jobs, `heard` and perhaps `claim`
Pool = Callable[..., None]


def find_engine(name: Engine) -> TrainingEngine:
    """The engine called `name`."""
    check_choice("engine", name, ENGINES)
    return ENGINE_TABLE[name]


def pool_for(engine: Engine, *, workers: int | None, device: str, ray: RaySettings | None = None) -> Pool:
    """What does the jobs of `engine`, `workers` at a time: processes of this machine, or a Ray cluster.

    Without `workers`, as many as this machine has cores, or as many as the cluster takes.
    """
    chosen = find_engine(engine)
    if workers is not None:
        check_whole("workers", workers, cure="count the processes")

    def pool(jobs: Sequence[Job], **listeners: Any) -> None:
        chosen.work_through(jobs, workers=workers, device=device, ray=ray, **listeners)

    return pool


def kept_ready(engine: Engine) -> AbstractContextManager[Any]:
    """Within it, only the first use of a pool has to wait until the engine is ready."""
    return find_engine(engine).kept_ready()
