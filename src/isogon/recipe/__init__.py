"""A training recipe, its tuning factor, the rules that transfer it, and readers of optimizers and saved settings."""

from __future__ import annotations

from isogon.recipe._conventions import CONVENTIONS, native_convention
from isogon.recipe._evidence import REGIMES
from isogon.recipe._names import field_name, is_relative, new_value
from isogon.recipe._published import Placement, PublishedRecipe, place, published_recipes
from isogon.recipe._recipe import Recipe
from isogon.recipe._torch_groups import GroupSettings, kind_of_optimizer, read_group
from isogon.recipe._transfer import CHANGEABLE, MODEL_CHANGES, RULES_OF_TRANSFER, SOLVABLE, Transfer

__all__ = [
    "CHANGEABLE",
    "CONVENTIONS",
    "MODEL_CHANGES",
    "REGIMES",
    "RULES_OF_TRANSFER",
    "SOLVABLE",
    "GroupSettings",
    "Placement",
    "PublishedRecipe",
    "Recipe",
    "Transfer",
    "field_name",
    "is_relative",
    "kind_of_optimizer",
    "native_convention",
    "new_value",
    "place",
    "published_recipes",
    "read_group",
]
