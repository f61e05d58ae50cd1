"""A pool of processes that train: one thread each, and the death of one costs no run but what it had under way."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from isogon.lab.config import Config
from isogon.lab.lane_group import lanes
from isogon.lab.training import train

#: configs that one worker trains together
Unit = list[Config]
#: what a worker says, with a config's key: "epoch" and the row; "ended" and the status; "failed" and the error
Heard = Callable[[str, str, Any], None]

# A run whose worker dies is tried again, since the machine may have been short of memory; not for ever.
_TRIES = 2


def work_through(units: Sequence[Unit], out: str, *, workers: int, device: str | None, heard: Heard) -> None:
    """Train every unit below `out`, `workers` at a time; a unit that fails or whose worker dies ends no other."""
    context = multiprocessing.get_context("spawn")
    waiting = deque((unit, 1) for unit in units)
    busy: dict[Connection, _Worker] = {}
    idle: list[_Worker] = []
    try:
        while waiting or busy:
            while waiting and len(busy) < workers:
                worker = idle.pop() if idle else _Worker(context, out, device)
                worker.give(*waiting.popleft())
                busy[worker.connection] = worker
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

    def __init__(self, context: Any, out: str, device: str | None) -> None:
        self.connection, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(target=_work, args=(theirs, out, device), daemon=True)
        self.process.start()
        theirs.close()
        self.unit: Unit = []
        self.tries = 0

    def give(self, unit: Unit, tries: int) -> None:
        self.unit, self.tries = unit, tries
        self.connection.send(unit)

    def end(self) -> None:
        self.process.terminate()
        self.process.join()
        self.connection.close()


def _after_a_death(worker: _Worker, waiting: deque[tuple[Unit, int]], heard: Heard) -> None:
    worker.process.join()
    if worker.tries < _TRIES:
        waiting.append((worker.unit, worker.tries + 1))
        return
    for config in worker.unit:
        heard("failed", config.key, f"its worker ended {_TRIES} times, last with exit code {worker.process.exitcode}")


def _work(connection: Connection, out: str, device: str | None) -> None:
    """The life of a worker: units in, news out."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the driver, which ends its workers
    threading.Thread(target=_die_with_the_driver, daemon=True).start()
    torch.set_num_threads(1)
    try:
        while True:
            _train_unit(connection.recv(), out, device, connection)
            connection.send(("done", "", None))
    except (EOFError, BrokenPipeError):
        pass


def _die_with_the_driver() -> None:
    """A worker must not train on where a resumed driver has begun the same run."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _train_unit(unit: Unit, out: str, device: str | None, connection: Connection) -> None:
    def report(config: Config, row: Mapping[str, Any]) -> None:
        connection.send(("epoch", config.key, dict(row)))

    if len(unit) > 1:
        try:
            for run in lanes(unit, out, device=device, report=report):
                connection.send(("ended", run.config.key, run.status))
            return
        except Exception:  # one of them; alone, each goes on from its checkpoint and only that one fails
            pass
    for config in unit:
        try:
            run = train(
                config,
                os.path.join(out, config.name),
                device=device,
                progress=False,
                report=lambda row, config=config: report(config, row),  # type: ignore[misc]
            )
            connection.send(("ended", config.key, run.status))
        except Exception:  # whatever a config leads to is that run's failure
            connection.send(("failed", config.key, traceback.format_exc()))
