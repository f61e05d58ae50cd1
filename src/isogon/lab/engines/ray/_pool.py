"""A pool of workers on a Ray cluster, which does what `engines/_workers.py` does with processes of this machine.

A job is a Ray task that streams its events. Ray itself retries nothing: a dead task has reported how far it came, so
the coordinator decides, and each run ends exactly once. Where a worker sees the coordinator's folder it trains there,
elsewhere in a folder of its node, and its files come back with the events.
"""

from __future__ import annotations

import os
import secrets
import time
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

from isogon.errors import IsogonError, first_line
from isogon.files import write_whole
from isogon.lab.engines._events import Event, EventListener, LastEvent, RunFailed
from isogon.lab.engines._workers import Job
from isogon.lab.engines.ray._session import RaySettings, keep_ray
from isogon.lab.engines.ray._task import MARK, CoordinatorContext, FileMade, work_and_report

# The cluster may grow while no job reports anything.
_LOOK_AGAIN_SECONDS = 10.0
_DRIVER_NODE_DIED = "the node that this program runs on has died"
#: seconds for which a cluster that has lost a node may be without room for a job
LOST_PATIENCE = 60.0


class ClusterLostError(IsogonError):
    """The Ray cluster is gone, and with it the runs in progress, but no finished one."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"The Ray cluster is lost ({reason}): nothing that ended is, and the same command resumes.")


class MovableJob(Job, Protocol):
    """A job that can be done in another folder, and its files moved later."""

    out: str

    def move_to(self, out: str) -> Self: ...


AnyJob = TypeVar("AnyJob", bound=MovableJob)


@dataclass
class _Attempt:
    """A job in progress, and those of its keys that have ended."""

    job: MovableJob
    tries: int = 0
    claimed: bool = False
    over: set[str] = field(default_factory=set)

    @property
    def open_keys(self) -> list[str]:
        return [key for key in self.job.keys if key not in self.over]


def work_through_on_ray(
    jobs: Sequence[AnyJob],
    *,
    workers: int | None = None,
    on_event: EventListener,
    claim: Callable[[AnyJob], bool] | None = None,
    settings: RaySettings,
) -> None:
    """Do all jobs, `workers` at a time or as many as the cluster takes; see `work_through` of `engines/_workers.py`.

    A job whose worker dies is tried again `settings.retries` times, then it is a `RunFailed`. The death of a node is
    no fault of the job, and costs it none of these. Where the coordinator's own node is gone, or no node is left that
    takes a job, a `ClusterLostError` ends the call; runs in progress stay open.
    """
    with keep_ray() as connect:
        ray = connect(settings)
        task = ray.remote(num_cpus=settings.cpus, num_gpus=settings.gpus or 0, num_returns="streaming", max_retries=0)(
            work_and_report
        )
        coordinator = CoordinatorContext.current()
        waiting = deque(_Attempt(job) for job in jobs)
        busy: dict[Any, _Attempt] = {}
        nodes = _Nodes(ray, settings)
        try:
            while waiting or busy:
                capacity = nodes.room()  # called in any case: it checks that the cluster is still there
                room = workers or capacity
                while waiting and len(busy) < room:
                    attempt = waiting.popleft()
                    if not attempt.claimed and claim is not None and not claim(attempt.job):  # type: ignore[arg-type]
                        continue
                    attempt.claimed = True
                    attempt.tries += 1
                    busy[task.remote(_pack(ray, attempt.job), coordinator)] = attempt
                if not busy:  # all that was left belongs to other coordinators
                    continue
                ready, _ = ray.wait(list(busy), num_returns=1, timeout=_LOOK_AGAIN_SECONDS)
                for stream in ready:
                    attempt = busy.pop(stream)
                    try:
                        event = ray.get(next(stream))
                    except StopIteration:
                        continue
                    except nodes.deaths as error:
                        nodes.note_death(error)
                        attempt.tries -= 1
                        waiting.append(attempt)
                        continue
                    except ray.exceptions.RayError as error:
                        _handle_death(attempt, error, settings, waiting, on_event)
                        continue
                    busy[stream] = attempt  # behind the others, so that none waits for one with many events
                    _pass_on(attempt, event, on_event)
        finally:
            for stream in busy:
                with suppress(Exception):  # the cluster may be gone, and the first error matters more
                    ray.cancel(stream, force=True)


def _pass_on(attempt: _Attempt, event: Event, on_event: EventListener) -> None:
    if isinstance(event, FileMade):
        target = Path(attempt.job.out, event.path)
        target.parent.mkdir(parents=True, exist_ok=True)
        write_whole(target, event.content)
    elif event.key not in attempt.over:
        if isinstance(event, LastEvent):
            attempt.over.add(event.key)
        on_event(event)


def _handle_death(
    attempt: _Attempt, error: Exception, settings: RaySettings, waiting: deque[_Attempt], on_event: EventListener
) -> None:
    """Put the job back into the queue; nothing is left to do where the worker died after its last event."""
    if attempt.open_keys and attempt.tries <= settings.retries:
        waiting.append(attempt)
        return
    for key in attempt.open_keys:
        reason = first_line(getattr(error, "cause", None) or error)
        on_event(RunFailed(key, f"its worker on Ray ended {attempt.tries} times, last with: {reason}"))


class _Nodes:
    """The nodes of the cluster: how many jobs they take, and what the death of one means."""

    def __init__(self, ray: Any, settings: RaySettings) -> None:
        self._ray, self._settings = ray, settings
        self._own_node = ray.get_runtime_context().get_node_id()
        known = vars(ray.exceptions)
        #: what Ray raises where not the job's process has died but what it ran on
        self.deaths = tuple(known[name] for name in ("NodeDiedError", "LocalRayletDiedError") if name in known)
        self._without_room_since: float | None = None
        self._lost_one = False

    def room(self) -> int:
        """Jobs that the cluster takes at once, as it is now; at least one, since a cluster may grow when it is asked.

        Not for ever, where it has lost a node.
        """
        nodes = [node for node in self._ray.nodes() if node["Alive"]]
        # Jobs could no longer report anything, not even their end.
        if all(node["NodeID"] != self._own_node for node in nodes):
            raise ClusterLostError(_DRIVER_NODE_DIED)
        room = sum(self._settings.fitting(node["Resources"]) for node in nodes)
        if room:
            self._without_room_since = None
            return room
        if self._without_room_since is None:
            self._without_room_since = time.monotonic()
            asked = f"{self._settings.cpus:g} CPUs and {self._settings.gpus or 0:g} GPUs"
            warnings.warn(f"No node of the Ray cluster has {asked} for a job: waiting for one that has.", stacklevel=3)
        if self._lost_one and time.monotonic() - self._without_room_since > LOST_PATIENCE:
            raise ClusterLostError("no node is left that takes a job")
        return 1

    def note_death(self, error: Exception) -> None:
        """A node has died; without the one that this process is on nothing more can be asked of the cluster."""
        self._lost_one = True
        if type(error).__name__ == "LocalRayletDiedError":
            raise ClusterLostError(_DRIVER_NODE_DIED) from error


def _pack(ray: Any, job: MovableJob) -> bytes:
    """The job with a path that does not depend on the current folder; a worker unpacks it once it can import it."""
    packed: bytes = ray.cloudpickle.dumps((job.move_to(os.path.abspath(job.out)), _mark(Path(job.out))))
    return packed


def _mark(folder: Path) -> str:
    """The content of a file by which a worker recognises this folder."""
    file = folder / MARK
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        # Private, since on nodes without this folder it names the one that takes its place.
        write_whole(file, secrets.token_hex(16), private=True)
    return file.read_text(encoding="utf-8")
