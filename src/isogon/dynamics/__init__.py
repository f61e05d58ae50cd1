"""Watching a run: measures (pure) → monitor (hooks) → records (the one table schema) → findings (what to change)."""

from __future__ import annotations

from isogon.dynamics import averages, ensembles, measures
from isogon.dynamics.advice import Finding, findings
from isogon.dynamics.delivery import Sink
from isogon.dynamics.detector import Detector, remaining_steps
from isogon.dynamics.monitor import Monitor
from isogon.dynamics.records import SCHEMA, RunFolder, read, read_epochs, read_run
from isogon.dynamics.watch import ParametersChangedError

__all__ = [
    "SCHEMA",
    "Detector",
    "Finding",
    "Monitor",
    "ParametersChangedError",
    "RunFolder",
    "Sink",
    "averages",
    "ensembles",
    "findings",
    "measures",
    "read",
    "read_epochs",
    "read_run",
    "remaining_steps",
]
