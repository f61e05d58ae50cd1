"""A training recipe, its tuning factor, the rule that transfers it, and the one reader of torch's parameter groups."""

from __future__ import annotations

from isogon.recipe._recipe import CHANGEABLE, SOLVABLE, Recipe, Transfer
from isogon.recipe._torch_groups import GroupSettings, kind_of_optimizer, read_group

__all__ = ["CHANGEABLE", "SOLVABLE", "GroupSettings", "Recipe", "Transfer", "kind_of_optimizer", "read_group"]
