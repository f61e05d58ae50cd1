"""A pool of workers on a Ray cluster, which does what `lab.workers` does with processes of this machine.

A job is a Ray task that streams its news. Ray itself retries nothing: a task that died has told how far it came, so the
driver decides, and each run ends exactly once. Where a worker sees the driver's folder it trains there; elsewhere it
trains in a folder of its node and its files come back with the news.
"""

from __future__ import annotations

import os
import secrets
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

from isogon.errors import first_line
from isogon.files import write_whole
from isogon.lab.ray_session import RaySettings, ray_kept
from isogon.lab.ray_task import MARK, NEWS_OF_A_FILE, Driver, work_and_tell
from isogon.lab.workers import Job, Say

# The cluster may grow while no job has news.
_LOOK_AGAIN_SECONDS = 10.0


class MovableJob(Job, Protocol):
    """A job that can be done in another folder, and its files moved later."""

    out: str

    def moved_to(self, out: str) -> Self: ...


AnyJob = TypeVar("AnyJob", bound=MovableJob)


@dataclass
class _Attempt:
    """A job on its way, and those of its keys of which nothing more is to be heard."""

    job: MovableJob
    tries: int = 0
    over: set[str] = field(default_factory=set)

    @property
    def open_keys(self) -> list[str]:
        return [key for key in self.job.keys if key not in self.over]


def work_through_on_ray(
    jobs: Sequence[AnyJob],
    *,
    workers: int | None = None,
    heard: Say,
    claim: Callable[[AnyJob], bool] | None = None,
    settings: RaySettings,
) -> None:
    """Do all jobs, `workers` at a time or as many as the cluster takes; see `lab.workers.work_through`.

    A job whose worker or node dies is tried again `settings.retries` times, then heard of as "failed".
    """
    with ray_kept() as connect:
        ray = connect(settings)
        task = ray.remote(num_cpus=settings.cpus, num_gpus=settings.gpus or 0, num_returns="streaming", max_retries=0)(
            work_and_tell
        )
        driver = Driver.this_one()
        waiting = deque(_Attempt(job) for job in jobs)
        busy: dict[Any, _Attempt] = {}
        try:
            while waiting or busy:
                room = workers or _room(ray, settings)
                while waiting and len(busy) < room:
                    attempt = waiting.popleft()
                    if attempt.tries == 0 and claim is not None and not claim(attempt.job):  # type: ignore[arg-type]
                        continue
                    attempt.tries += 1
                    busy[task.remote(_packed(ray, attempt.job), driver)] = attempt
                if not busy:  # all that was left was somebody else's
                    continue
                ready, _ = ray.wait(list(busy), num_returns=1, timeout=_LOOK_AGAIN_SECONDS)
                for stream in ready:
                    attempt = busy.pop(stream)
                    try:
                        kind, key, content = ray.get(next(stream))
                    except StopIteration:
                        continue
                    except ray.exceptions.RayError as error:
                        _after_a_death(attempt, error, settings, waiting, heard)
                        continue
                    busy[stream] = attempt  # behind the others, so that none has to wait for a talkative one
                    _pass_on(attempt, kind, key, content, heard)
        finally:
            for stream in busy:
                with suppress(Exception):  # the cluster may be gone, and what ended us matters more
                    ray.cancel(stream, force=True)


def _pass_on(attempt: _Attempt, kind: str, key: str, content: Any, heard: Say) -> None:
    if kind == NEWS_OF_A_FILE:
        target = Path(attempt.job.out, key)
        target.parent.mkdir(parents=True, exist_ok=True)
        write_whole(target, content)
    elif key not in attempt.over:
        if kind in ("ended", "failed"):
            attempt.over.add(key)
        heard(kind, key, content)


def _after_a_death(
    attempt: _Attempt, error: Exception, settings: RaySettings, waiting: deque[_Attempt], heard: Say
) -> None:
    """Back to those who wait; nothing is left to do where the worker died after its last word."""
    if attempt.open_keys and attempt.tries <= settings.retries:
        waiting.append(attempt)
        return
    for key in attempt.open_keys:
        reason = first_line(getattr(error, "cause", None) or error)
        heard("failed", key, f"its worker on Ray ended {attempt.tries} times, last with: {reason}")


def _room(ray: Any, settings: RaySettings) -> int:
    """Jobs that the cluster takes at once, as it is now; at least one, since a cluster may grow when it is asked."""
    room = sum(settings.fitting(node["Resources"]) for node in ray.nodes() if node["Alive"])
    if room == 0:
        asked = f"{settings.cpus:g} CPUs and {settings.gpus or 0:g} GPUs"
        warnings.warn(f"No node of the Ray cluster has {asked} for a job: waiting for one that has.", stacklevel=3)
    return max(room, 1)


def _packed(ray: Any, job: MovableJob) -> bytes:
    """The job with a path that does not depend on the current folder; a worker unpacks it once it can import it."""
    packed: bytes = ray.cloudpickle.dumps((job.moved_to(os.path.abspath(job.out)), _mark(Path(job.out))))
    return packed


def _mark(folder: Path) -> str:
    """What tells a worker that a folder with this path is this folder: the content of a file in it."""
    file = folder / MARK
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        # Private, since on nodes without this folder it names the one that takes its place.
        write_whole(file, secrets.token_hex(16), private=True)
    return file.read_text(encoding="utf-8")
