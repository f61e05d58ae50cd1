"""Driving a PyTorch optimizer by a schedule; corrections, rebasing, rescaling at a decay."""

from __future__ import annotations

from isogon.optim._driver import Driver, drive
from isogon.optim._groups import invariant_names, split_groups
from isogon.optim._rescale import RescaleOnDecay
from isogon.optim._scaling import trade_scale
from isogon.optim._two_phases import TwoPhase, two_phase

__all__ = [
    "Driver",
    "RescaleOnDecay",
    "TwoPhase",
    "drive",
    "invariant_names",
    "split_groups",
    "trade_scale",
    "two_phase",
]
