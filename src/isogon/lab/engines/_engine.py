"""What every engine offers: how configs become jobs, how jobs are done, and how long it stays ready."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from isogon.lab.engines._events import EventListener
from isogon.lab.run import Config

if TYPE_CHECKING:
    from isogon.lab.engines.ray import RaySettings


class TrainingEngine(ABC):
    """The base of the engines."""

    #: whether the configs of one job train at once
    together = False

    def units(self, configs: Sequence[Config], *, workers: int | None, device: str, shared: bool) -> list[list[Config]]:
        """The configs of each job; `shared` where others may claim some of them. One each, unless overridden."""
        return [[config] for config in configs]

    @abstractmethod
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
        """Do all jobs, `workers` at a time (as many as suit where None); `on_event` gets their events."""

    @abstractmethod
    def keep_ready(self) -> AbstractContextManager[Any]:
        """Within it, only the first use has to wait until the engine is ready."""
