"""Many trainings: processes on this machine, lanes of one GPU, or a Ray cluster; each engine is an entry of a table."""

from __future__ import annotations

from isogon.lab.engines._engine import TrainingEngine
from isogon.lab.engines._events import (
    DiskFull,
    EpochEnded,
    Event,
    EventListener,
    News,
    ObjectiveEnded,
    RunEnded,
    RunFailed,
    TrainingEnded,
    TrainingEpoch,
    ValueRefused,
    ValueReported,
)
from isogon.lab.engines._placement import DeviceLostError, refuse_lost_device
from isogon.lab.engines._run_all import run_all
from isogon.lab.engines._table import ENGINE_TABLE, ENGINES, Engine, keep_ready, pool_for
from isogon.lab.engines.ray import RaySettings

__all__ = [
    "ENGINES",
    "ENGINE_TABLE",
    "DeviceLostError",
    "DiskFull",
    "Engine",
    "EpochEnded",
    "Event",
    "EventListener",
    "News",
    "ObjectiveEnded",
    "RaySettings",
    "RunEnded",
    "RunFailed",
    "TrainingEnded",
    "TrainingEngine",
    "TrainingEpoch",
    "ValueRefused",
    "ValueReported",
    "keep_ready",
    "refuse_lost_device",
    "pool_for",
    "run_all",
]
