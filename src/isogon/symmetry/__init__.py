"""Which weights of a model have no scale: `check(model, *inputs)`; which groups of them: `symmetries(model, *inputs)`.

Neither changes the model."""

from __future__ import annotations

from isogon.symmetry._check import check
from isogon.symmetry._degree import NOT_HOMOGENEOUS, UNKNOWN, Degree
from isogon.symmetry._operation import Operation
from isogon.symmetry._probe import DisagreementWarning, Measurement, measure
from isogon.symmetry._scale_map import Break, Disagreement, ScaleMap
from isogon.symmetry._state import State
from isogon.symmetry._trace import ExportError, unwrap, usual_call
from isogon.symmetry.groups import Part, Symmetries, scaling_text, symmetries
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
    "Part",
    "ScaleMap",
    "State",
    "Symmetries",
    "check",
    "measure",
    "register_rule",
    "remove_rule",
    "scaling_text",
    "symmetries",
    "unwrap",
    "usual_call",
]
