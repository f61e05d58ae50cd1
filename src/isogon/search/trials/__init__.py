"""What is tried: the ledger of trials in its storage, the study's folder, what trains, prunes and proposes trials."""

from __future__ import annotations

from isogon.search.trials._execution import train_cells
from isogon.search.trials._folder import DATABASE, STUDY, TRIALS, forget, opened, storage_of
from isogon.search.trials._ledger import Ledger, PlannedTrial, Status, StoredTrial, rows_of
from isogon.search.trials._proposals import TriedFactor, make_sampler, propose
from isogon.search.trials._pruning import make_pruner
from isogon.search.trials._storage import as_template, engine_settings, with_driver

__all__ = [
    "DATABASE",
    "STUDY",
    "TRIALS",
    "PlannedTrial",
    "Ledger",
    "StoredTrial",
    "Status",
    "TriedFactor",
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
