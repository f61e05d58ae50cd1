"""From numbers to the table: rows with predictions and equilibrium, their one schema, the way to files and sinks."""

from __future__ import annotations

from isogon.dynamics.measure import ALL
from isogon.dynamics.record._delivery import Delivery, Sink
from isogon.dynamics.record._detector import Detector, remaining_steps
from isogon.dynamics.record._rows import (
    CHANCES_AGAINST,
    DECIDED_AFTER,
    LEAK,
    MEAN_STEPS,
    NOISE,
    RowMaker,
)
from isogon.dynamics.record._tables import SCHEMA, RunFolder, join_tables, read, read_epochs, read_run, table

__all__ = [
    "ALL",
    "CHANCES_AGAINST",
    "DECIDED_AFTER",
    "LEAK",
    "MEAN_STEPS",
    "NOISE",
    "SCHEMA",
    "Delivery",
    "Detector",
    "RowMaker",
    "RunFolder",
    "Sink",
    "join_tables",
    "read",
    "read_epochs",
    "read_run",
    "remaining_steps",
    "table",
]
