"""Which weights of a model are scale-invariant: `check(model, *inputs)` tells, and never changes the model."""

from __future__ import annotations

from isogon.symmetry.degree import Degree
from isogon.symmetry.operation import Operation
from isogon.symmetry.probe import Measurement, measure
from isogon.symmetry.rules import register_rule, remove_rule
from isogon.symmetry.scale_map import Break, Disagreement, ScaleMap
from isogon.symmetry.state import State
from isogon.symmetry.trace import DisagreementWarning, ExportError, check

__all__ = [
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
]
