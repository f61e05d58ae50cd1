"""Which weights of a model are scale-invariant: `check(model, *inputs)` tells, and never changes the model."""

from __future__ import annotations

from isogon.symmetry._check import DisagreementWarning, ExportError, check, unwrapped
from isogon.symmetry._degree import NOT_HOMOGENEOUS, UNKNOWN, Degree
from isogon.symmetry._operation import Operation
from isogon.symmetry._probe import Measurement, measure
from isogon.symmetry._scale_map import Break, Disagreement, ScaleMap
from isogon.symmetry._state import State
from isogon.symmetry.rules import register_rule, remove_rule

__all__ = [
    "NOT_HOMOGENEOUS",
    "UNKNOWN",
    "Break",
    "Degree",
    "Disagreement",
    "DisagreementWarning",
    "ExportError",
    "Measurement",
    "Operation",
    "ScaleMap",
    "State",
    "check",
    "measure",
    "register_rule",
    "remove_rule",
    "unwrapped",
]
