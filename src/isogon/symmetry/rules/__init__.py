"""Rules by kind of operation: what each one does to the degrees of its inputs. Importing this folder registers all."""

from __future__ import annotations

from isogon.symmetry.rules import _contract, _create, _norm, _pointwise, _recurrent, _reduce, _shape
from isogon.symmetry.rules._registry import find_rule, register_rule, remove_rule
from isogon.symmetry.rules._shape import concatenate

#: every module whose rules are registered; a new one is added here
MODULES = (_contract, _create, _norm, _pointwise, _recurrent, _reduce, _shape)

__all__ = ["MODULES", "concatenate", "find_rule", "register_rule", "remove_rule"]
