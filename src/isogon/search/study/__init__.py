"""The question: the study file and its checks, and the objective."""

from __future__ import annotations

from isogon.search.study._objective import Pruned, Trial, find_objective, value_of
from isogon.search.study._study import UNKNOWNS, MetricError, Pruner, Sampler, Study, TaskTable

__all__ = [
    "UNKNOWNS",
    "MetricError",
    "Pruned",
    "Pruner",
    "Sampler",
    "Study",
    "TaskTable",
    "Trial",
    "find_objective",
    "value_of",
]
