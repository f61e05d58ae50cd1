"""Rows on their way to the sinks: each sink has its own queue, and what it has not taken stays there."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd

from isogon.dynamics.record._tables import join_tables
from isogon.errors import ArgumentError, first_line

#: takes new rows as a table in the schema of `dynamics.SCHEMA`
Sink = Callable[[pd.DataFrame], Any]


class Delivery:
    """Hands rows and ends of epochs to the sinks, in order, each to each once.

    A sink that raises keeps its queue for the next time and disturbs nobody: neither the others nor the training, from
    inside which it is called. It gives one warning until it works again. With `strict` the first error is raised, after
    every sink has had its turn.
    """

    def __init__(self, sinks: Sequence[Sink], *, strict: bool = False) -> None:
        for sink in sinks:
            if not callable(sink):
                rule = "callables that take a table of rows"
                raise ArgumentError("sinks", rule, sink, "give a function or a RunFolder")
        self._queues = [_Queue(sink) for sink in sinks]
        self._strict = strict

    def open(self, run: Mapping[str, Any]) -> None:
        """Open the sinks for the run; one that cannot take it raises here, before anything is trained."""
        for queue in self._queues:
            queue.call("open", run)

    def add_rows(self, rows: pd.DataFrame) -> None:
        for queue in self._queues:
            queue.rows.append(rows)

    def add_epoch(self, row: Mapping[str, Any]) -> None:
        for queue in self._queues:
            queue.epochs.append(row)

    def flush(self) -> None:
        """Deliver what waits."""
        errors = [error for queue in self._queues if (error := queue.deliver()) is not None]
        if errors and self._strict:
            raise errors[0]

    def close(self) -> None:
        """Deliver what waits, close the sinks, and warn of what is missing; called again, it tries those again."""
        errors = []
        for queue in self._queues:
            if queue.closed:
                continue
            error = queue.deliver(warn=False)
            if error is None:
                try:
                    queue.call("close")
                except Exception as problem:
                    error = problem
            queue.closed = error is None
            if error is None:
                continue
            errors.append(error)
            if not self._strict:
                missing = sum(map(len, queue.rows))
                warnings.warn(
                    f"{queue.name} could not be completed ({first_line(error)}): {missing} rows and "
                    f"{len(queue.epochs)} epochs are missing there; they are in monitor.records and monitor.epochs.",
                    stacklevel=3,
                )
        if errors and self._strict:
            raise errors[0]


class _Queue:
    """What one sink still has to take."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self.rows: deque[pd.DataFrame] = deque()
        self.epochs: deque[Mapping[str, Any]] = deque()
        self.closed = False
        self._failing = False

    @property
    def name(self) -> str:
        place = getattr(self.sink, "folder", None)
        kind = getattr(self.sink, "__name__", type(self.sink).__name__)
        return f"The sink {kind}" if place is None else f"{kind} {place}"

    def call(self, name: str, *args: Any) -> None:
        """Call the sink's method `name` if it has one."""
        method = getattr(self.sink, name, None)
        if callable(method):
            method(*args)

    def deliver(self, *, warn: bool = True) -> Exception | None:
        """Hand over what waits; the error where the sink raised one, and then the rest still waits."""
        try:
            if self.rows:
                waiting = list(self.rows)
                self.sink(join_tables(waiting) if len(waiting) > 1 else waiting[0])
                for _ in waiting:  # taken; what came meanwhile waits for the next time
                    self.rows.popleft()
            epochs = list(self.epochs)
            for row in epochs:
                self.call("end_epoch", row)
            self.call("flush")
            for _ in epochs:  # only now are they where they belong; an epoch that is sent again replaces itself
                self.epochs.popleft()
        except Exception as error:  # a full disk, a lost connection: the sink's trouble, not the training's
            if warn and not self._failing:
                warnings.warn(
                    f"{self.name} did not take what was measured ({first_line(error)}): it waits, and is offered again "
                    "at the end of each epoch and on close.",
                    stacklevel=4,
                )
            self._failing = True
            return error
        self._failing = False
        return None
