"""Driving a PyTorch optimizer by a schedule; corrections, rebasing, rescaling at a decay; Lion, Muon with AdamW."""

from __future__ import annotations

from isogon.optim._driver import Driver, drive
from isogon.optim._groups import invariant_names, split_groups
from isogon.optim._lion import Lion
from isogon.optim._muon import MuonWithAdamW
from isogon.optim._rescale import RescaleOnDecay
from isogon.optim._scaling import trade_scale
from isogon.optim._two_phases import TwoPhase, two_phase
from isogon.optim._weights import decayed_weights, depths, hidden_matrices, make_groups

__all__ = [
    "Driver",
    "Lion",
    "MuonWithAdamW",
    "RescaleOnDecay",
    "TwoPhase",
    "decayed_weights",
    "depths",
    "drive",
    "hidden_matrices",
    "invariant_names",
    "make_groups",
    "split_groups",
    "trade_scale",
    "two_phase",
]
