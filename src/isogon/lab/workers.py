"""A pool of processes: one thread each, and the death of one costs no job but what it had under way."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

import torch

#: takes news of a run: what kind, the run's key, and whatever belongs to it
Say = Callable[[str, str, Any], None]

# A job whose worker dies is tried again, since the machine may have been short of memory; not for ever.
_TRIES = 2


class Job(Protocol):
    """Work for one worker, about the runs with these keys; it is pickled on its way there."""

    @property
    def keys(self) -> Sequence[str]: ...

    def work(self, say: Say) -> None:
        """Do it, and say what there is to say; an exception here counts as the worker's death."""


def work_through(jobs: Sequence[Job], *, workers: int, heard: Say) -> None:
    """Do all jobs, `workers` at a time; one whose worker dies twice is heard of as "failed" and ends no other."""
    context = multiprocessing.get_context("spawn")
    waiting = deque((job, 1) for job in jobs)
    busy: dict[Connection, _Worker] = {}
    idle: list[_Worker] = []
    try:
        while waiting or busy:
            while waiting and len(busy) < workers:
                worker = idle.pop() if idle else _Worker(context)
                busy[worker.connection] = worker
                worker.give(*waiting.popleft())
            for connection in wait(list(busy)):
                worker = busy[connection]  # type: ignore[index]
                try:
                    kind, key, content = worker.connection.recv()
                except (EOFError, OSError):
                    del busy[worker.connection]
                    _after_a_death(worker, waiting, heard)
                    continue
                if kind == "done":
                    idle.append(busy.pop(worker.connection))
                else:
                    heard(kind, key, content)
    finally:
        for worker in [*idle, *busy.values()]:
            worker.end()


class _Worker:
    """A process and the line to it."""

    job: Job

    def __init__(self, context: Any) -> None:
        self.connection, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(target=_work, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()
        self.tries = 0

    def give(self, job: Job, tries: int) -> None:
        self.job, self.tries = job, tries
        with suppress(OSError):  # it died while it was idle, which will be noticed when it is listened to
            self.connection.send(job)

    def end(self) -> None:
        self.process.terminate()
        self.process.join()
        self.connection.close()


def _after_a_death(worker: _Worker, waiting: deque[tuple[Job, int]], heard: Say) -> None:
    worker.process.join()
    worker.connection.close()
    if worker.tries < _TRIES:
        waiting.append((worker.job, worker.tries + 1))
        return
    for key in worker.job.keys:
        heard("failed", key, f"its worker ended {_TRIES} times, last with exit code {worker.process.exitcode}")


def _work(connection: Connection) -> None:
    """The life of a worker: jobs in, news out."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the driver, which ends its workers
    threading.Thread(target=_die_with_the_driver, daemon=True).start()
    torch.set_num_threads(1)

    def say(kind: str, key: str, content: Any) -> None:
        connection.send((kind, key, content))

    try:
        while True:
            connection.recv().work(say)
            say("done", "", None)
    except (EOFError, BrokenPipeError):
        pass


def _die_with_the_driver() -> None:
    """A worker must not train on where a resumed driver has begun the same run."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
