"""A pool of processes: one thread each; the death of one costs no job but its current one."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch

from isogon.errors import IsogonError
from isogon.lab.engines._events import Event, EventListener, RunFailed
from isogon.lab.engines._placement import VISIBLE, DeviceLostError, Placement, gpus

# A job whose worker dies is tried again, since the machine may have been short of memory; not for ever. One that lost
# its GPU may have once more, on another one.
_TRIES, _TRIES_ON_GPUS = 2, 3
# Exit code of a worker that should start workers itself: it runs the coordinator's script, which has no main guard.
_UNGUARDED = 78


class Job(Protocol):
    """Work for one worker, about the runs with these keys; it is pickled on its way there."""

    @property
    def keys(self) -> Sequence[str]: ...

    def work(self, emit: EventListener) -> None:
        """Do it, and report events; an exception here counts as the worker's death."""


@runtime_checkable
class Divisible(Protocol):
    """A job of several runs that can be done one by one."""

    def split(self) -> Sequence[Job]: ...


AnyJob = TypeVar("AnyJob", bound=Job)
_KEPT: ContextVar[list[_Worker] | None] = ContextVar("kept", default=None)


def work_through(
    jobs: Sequence[AnyJob],
    *,
    workers: int,
    on_event: EventListener,
    claim: Callable[[AnyJob], bool] | None = None,
    places: Sequence[str] = (),
) -> None:
    """Do all jobs, `workers` at a time; one whose worker dies twice is a `RunFailed` and ends no other.

    `places` are the GPUs among which the workers are spread (see `_placement.py`); each sees its own alone.

    `claim` is called right before a job is first given to a worker; where it returns False, another coordinator does
    it.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        os._exit(_UNGUARDED)
    context = multiprocessing.get_context("spawn")
    shared = _KEPT.get()
    waiting = deque(_Attempt(job) for job in jobs)
    placement = Placement(places, workers)
    busy: dict[Connection, _Worker] = {}
    idle: list[_Worker] = [] if shared is None else shared
    try:
        while waiting or busy:
            while waiting and len(busy) < workers and (place := placement.take(waiting[0].lost_at)) is not None:
                attempt = waiting.popleft()
                if attempt.tries == 1 and claim is not None and not claim(attempt.job):  # type: ignore[arg-type]
                    placement.release(place)
                    continue
                ready = next((worker for worker in idle if worker.place == place), None)
                if ready is not None:
                    idle.remove(ready)
                worker = ready or _Worker(context, place)
                busy[worker.connection] = worker
                worker.give(attempt)
            if not busy:  # all that was left belongs to other coordinators
                break
            for connection in wait(list(busy)):
                worker = busy[connection]  # type: ignore[index]
                try:
                    event: Event | _GpuLost | None = worker.connection.recv()
                except (EOFError, OSError):
                    del busy[worker.connection]
                    placement.release(worker.place)
                    if worker.lost is not None:
                        placement.lose(worker.place, tuple(worker.attempt.job.keys), worker.lost)
                    _handle_death(worker, waiting, on_event)
                    continue
                if isinstance(event, _GpuLost):
                    worker.lost = event.reason
                elif event is None:  # the job is done
                    idle.append(busy.pop(worker.connection))
                    placement.release(worker.place)
                    placement.succeed(worker.place)
                else:
                    on_event(event)
    finally:
        for worker in [*busy.values(), *(idle if shared is None else [])]:
            worker.end()


@contextmanager
def keep_workers() -> Iterator[None]:
    """Within it, workers that have done their jobs wait for the next call's: to start one takes seconds."""
    idle: list[_Worker] = []
    before = _KEPT.set(idle)
    try:
        yield
    finally:
        _KEPT.reset(before)
        for worker in idle:
            worker.end()


@dataclass
class _Attempt:
    """A job, which try it will be, and the GPUs that it was lost on."""

    job: Job
    tries: int = 1
    lost_at: tuple[str, ...] = ()


@dataclass(frozen=True)
class _GpuLost:
    """A worker's last message: it can no longer use its GPU."""

    reason: str


class _Worker:
    """A process and the connection to it."""

    attempt: _Attempt

    def __init__(self, context: Any, place: str = "") -> None:
        self.place = place
        #: why it could no longer use its GPU
        self.lost: str | None = None
        self.connection, remote = context.Pipe()
        # No daemon: a job may have processes of its own, for example those of a DataLoader.
        self.process: BaseProcess = context.Process(target=_work, args=(remote,), daemon=False)
        with _block_interrupts(), _only_gpu(place):
            self.process.start()
        remote.close()

    def give(self, attempt: _Attempt) -> None:
        self.attempt = attempt
        with suppress(OSError):  # it died while idle; the next read notices
            self.connection.send(attempt.job)

    def end(self) -> None:
        self.process.terminate()
        self.process.join()
        self.connection.close()


@contextmanager
def _only_gpu(place: str) -> Iterator[None]:
    """A process that starts within it sees this GPU alone."""
    before = os.environ.get(VISIBLE)
    try:
        if place:
            os.environ[VISIBLE] = place
        yield
    finally:
        if place and before is None:
            del os.environ[VISIBLE]
        elif place and before is not None:
            os.environ[VISIBLE] = before


@contextmanager
def _block_interrupts() -> Iterator[None]:
    """Ctrl-C is for the coordinator: a process inherits what is blocked, so that it reaches no worker even at its
    start.

    One that comes meanwhile reaches the coordinator afterwards.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    # Whose own start would lift the block again.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _handle_death(worker: _Worker, waiting: deque[_Attempt], on_event: EventListener) -> None:
    worker.process.join()
    worker.connection.close()
    if worker.process.exitcode == _UNGUARDED:
        raise IsogonError(
            "Every worker runs the top level of your script again: put what starts the training below "
            'if __name__ == "__main__":'
        ) from None
    attempt, lost = worker.attempt, worker.lost is not None
    if attempt.tries < (_TRIES_ON_GPUS if lost else _TRIES):
        lost_at = (*attempt.lost_at, worker.place) if lost else attempt.lost_at
        # A GPU may be lost by one training of several, which then is the only one to lose it again.
        parts = attempt.job.split() if lost and isinstance(attempt.job, Divisible) else [attempt.job]
        waiting.extend(_Attempt(part, attempt.tries + 1, lost_at) for part in parts)
        return
    how = f"last with: {worker.lost}" if lost else f"last with exit code {worker.process.exitcode}"
    for key in attempt.job.keys:
        on_event(RunFailed(key, f"its worker ended {attempt.tries} times, {how}"))


def _work(connection: Connection) -> None:
    """The life of a worker: jobs in, events out, None at the end of each job."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the coordinator, which ends its workers
    threading.Thread(target=_die_with_the_coordinator, daemon=True).start()
    torch.set_num_threads(1)

    try:
        while True:
            connection.recv().work(connection.send)
            connection.send(None)
    except (EOFError, BrokenPipeError):
        pass
    except DeviceLostError as error:
        with suppress(OSError):
            connection.send(_GpuLost(str(error)))
        os._exit(1)  # in its usual way Python would ask the GPU to finish


def _die_with_the_coordinator() -> None:
    """A worker must not train on where a resumed coordinator has started the same run."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def default_workers(device: str) -> int:
    """The cores that this process may use; one process for each GPU."""
    if device.startswith("cuda"):
        return max(1, len(gpus(device)))
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
