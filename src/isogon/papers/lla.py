"""Li, Lyu and Arora, Reconciling Modern Deep Learning with Traditional Optimization Analyses: all experiments."""

from __future__ import annotations

from isogon.papers import (
    lla_averages,
    lla_full_batch,
    lla_mnist,
    lla_rates,
    lla_recovery,
    lla_schedules,
)
from isogon.papers.experiment import Experiment

_PARTS = (lla_schedules, lla_rates, lla_mnist, lla_full_batch, lla_averages, lla_recovery)
_BY_ID = {experiment.id: experiment for part in _PARTS for experiment in part.EXPERIMENTS}

EXPERIMENTS: tuple[Experiment, ...] = tuple(
    _BY_ID[one] for one in ("lla/table1", *(f"lla/fig{number}" for number in range(1, 14)))
)
