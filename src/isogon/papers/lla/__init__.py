"""Li, Lyu and Arora, Reconciling Modern Deep Learning with Traditional Optimization Analyses: all experiments."""

from __future__ import annotations

from isogon.papers.lla import _averages, _full_batch, _mnist, _rates, _recovery, _schedules
from isogon.papers.reproduction import Experiment

_PARTS = (_schedules, _rates, _mnist, _full_batch, _averages, _recovery)
_BY_ID = {experiment.id: experiment for part in _PARTS for experiment in part.EXPERIMENTS}

EXPERIMENTS: tuple[Experiment, ...] = tuple(
    _BY_ID[name] for name in ("lla/table1", *(f"lla/fig{number}" for number in range(1, 14)))
)

__all__ = ["EXPERIMENTS"]
