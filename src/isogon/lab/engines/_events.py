"""The events of a job while it works, and those of `run_all` about a training: one class per event."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from isogon.lab.run import Config, Run, RunStatus


@dataclass(frozen=True)
class Event:
    """Something about the run with this key."""

    key: str


@dataclass(frozen=True)
class EpochEnded(Event):
    """An epoch of a training, with its row."""

    row: Mapping[str, Any]


@dataclass(frozen=True)
class ValueReported(Event):
    """What an objective reported after a step of its own."""

    step: int
    value: float


@dataclass(frozen=True)
class LastEvent(Event):
    """Nothing else follows about this run."""


@dataclass(frozen=True)
class RunEnded(LastEvent):
    """A training has ended with this status; its folder has the rest."""

    status: RunStatus


@dataclass(frozen=True)
class ObjectiveEnded(LastEvent):
    """An objective has ended; `result` is what its file holds."""

    result: Mapping[str, Any]


@dataclass(frozen=True)
class RunFailed(LastEvent):
    """The run ended with an error; this is its traceback."""

    error: str


@dataclass(frozen=True)
class DiskFull(Event):
    """The run was left for later: the disk is full at `where`."""

    where: str


@dataclass(frozen=True)
class ValueRefused(Event):
    """What an objective reported cannot be its metric; every other trial's could not either."""

    reason: str


#: takes the events of jobs
EventListener = Callable[[Event], None]


@dataclass(frozen=True)
class TrainingEpoch:
    """An epoch of a training of `run_all`, with its row of the epochs' table."""

    config: Config
    row: Mapping[str, Any]


@dataclass(frozen=True)
class TrainingEnded:
    """A training of `run_all` is over; a `run` with status `failed` has its error."""

    config: Config
    run: Run


#: takes the events of `run_all`
News = Callable[[TrainingEpoch | TrainingEnded], None]
