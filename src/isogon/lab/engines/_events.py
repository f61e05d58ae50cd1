"""The events of a job while it works, and those of `run_all` about a training: one class per event."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from isogon.lab.run import Config, Run


@dataclass(frozen=True)
class Event:
    """Something about the run with this key."""

    key: str


@dataclass(frozen=True)
class EpochEnded(Event):
    """`report` is about the epoch: the row of a training, or step and value of an objective."""

    report: Any


@dataclass(frozen=True)
class RunEnded(Event):
    """The run has ended: `result` is a training's status, or what an objective returned."""

    result: Any


@dataclass(frozen=True)
class RunFailed(Event):
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
Say = Callable[[Event], None]


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
