"""Driving a PyTorch optimizer by a schedule; corrections, rebasing, rescaling at a decay."""

from __future__ import annotations

from isogon.optim.driver import Driver, drive
from isogon.optim.groups import invariant_names, split_groups
from isogon.optim.rescale import RescaleOnDecay
from isogon.optim.scaling import trade_scale
from isogon.optim.two_phases import TwoPhase, two_phase

__all__ = [
    "Driver",
    "RescaleOnDecay",
    "drive",
    "invariant_names",
    "split_groups",
    "trade_scale",
    "TwoPhase",
    "two_phase",
]
