"""Watching a run: measure (hooks and sums) → record (the one table schema) → findings (what to change).

`Monitor` goes through all three. `measures`, `averages` and `ensembles` are public modules of plain functions; the
first is the reference implementation that tests compare the monitor with.
"""

from __future__ import annotations

from isogon.dynamics import averages, ensembles, measures
from isogon.dynamics._monitor import Monitor
from isogon.dynamics.findings import Finding, drops, findings
from isogon.dynamics.measure import ParametersChangedError, chunk_places
from isogon.dynamics.record import (
    ALL,
    MEAN_STEPS,
    SCHEMA,
    Detector,
    RunFolder,
    Sink,
    read,
    read_epochs,
    read_run,
    remaining_steps,
)

__all__ = [
    "ALL",
    "MEAN_STEPS",
    "SCHEMA",
    "Detector",
    "Finding",
    "Monitor",
    "ParametersChangedError",
    "RunFolder",
    "Sink",
    "averages",
    "chunk_places",
    "drops",
    "ensembles",
    "findings",
    "measures",
    "read",
    "read_epochs",
    "read_run",
    "remaining_steps",
]
