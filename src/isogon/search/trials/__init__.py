"""What is tried: the ledger of trials in its storage, the study's folder, what trains, prunes and proposes trials."""

from __future__ import annotations

from isogon.search.trials._execution import train_cells
from isogon.search.trials._folder import DATABASE, STUDY, TRIALS, forget, opened, storage_of
from isogon.search.trials._ledger import Cell, Ledger, Row, Status, rows_of
from isogon.search.trials._proposals import Tried, make_sampler, propose
from isogon.search.trials._pruning import make_pruner
from isogon.search.trials._storage import as_template, engine_settings, with_driver

__all__ = [
    "DATABASE",
    "STUDY",
    "TRIALS",
    "Cell",
    "Ledger",
    "Row",
    "Status",
    "Tried",
    "as_template",
    "engine_settings",
    "forget",
    "make_pruner",
    "make_sampler",
    "opened",
    "propose",
    "rows_of",
    "storage_of",
    "train_cells",
    "with_driver",
]
