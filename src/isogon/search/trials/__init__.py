"""The trials: their ledger in a storage, the study's folder, and training, pruning and proposing them."""

from __future__ import annotations

from isogon.search.trials._execution import train_trials
from isogon.search.trials._folder import DATABASE, STUDY, TRIALS, forget, open_ledger, storage_of
from isogon.search.trials._ledger import Ledger, PlannedTrial, StoredTrial, TrialStatus, read_trials
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
    "TrialStatus",
    "TriedFactor",
    "as_template",
    "engine_settings",
    "forget",
    "make_pruner",
    "make_sampler",
    "open_ledger",
    "propose",
    "read_trials",
    "storage_of",
    "train_trials",
    "with_driver",
]
