"""The optimizers that the lab trains with, each made from a recipe; a new one is one function and one line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from isogon.recipe import Recipe
from isogon.theory import check_beta2


def _sgd(parameters: Any, recipe: Recipe) -> torch.optim.Optimizer:
    return torch.optim.SGD(
        parameters,
        lr=recipe.lr,
        momentum=recipe.momentum,
        weight_decay=recipe.weight_decay,
        nesterov=recipe.optimizer == "nesterov",
    )


def _adamw(parameters: Any, recipe: Recipe) -> torch.optim.Optimizer:
    betas = recipe.momentum, check_beta2(recipe.optimizer, recipe.beta2)
    return torch.optim.AdamW(parameters, lr=recipe.lr, betas=betas, weight_decay=recipe.weight_decay)


#: name in a recipe → what makes it
BUILDERS: Mapping[str, Callable[[Any, Recipe], torch.optim.Optimizer]] = {
    "sgd": _sgd,
    "nesterov": _sgd,
    "adamw": _adamw,
}
#: their names
TRAINED = tuple(BUILDERS)


def make_optimizer(parameters: Any, recipe: Recipe) -> torch.optim.Optimizer:
    """The torch optimizer of `recipe` for `parameters` or groups of them."""
    return BUILDERS[recipe.optimizer](parameters, recipe)
