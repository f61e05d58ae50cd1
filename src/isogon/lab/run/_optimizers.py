"""The optimizers that the lab trains with, each made from a recipe; a new one is one function and one line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from isogon.errors import ArgumentError
from isogon.optim import Lion, MuonWithAdamW, decayed_weights, depths, hidden_matrices, make_groups
from isogon.recipe import Recipe
from isogon.theory import check_beta2

if TYPE_CHECKING:
    from isogon.lab.run._config import Config

#: in a group whose weights are for Muon, where the recipe's optimizer is that
_FOR_MUON = "for_muon"


def _sgd(groups: Any, recipe: Recipe) -> torch.optim.Optimizer:
    return torch.optim.SGD(
        groups,
        lr=recipe.lr,
        momentum=recipe.momentum,
        weight_decay=recipe.weight_decay,
        nesterov=recipe.optimizer == "nesterov",
    )


def _adamw(groups: Any, recipe: Recipe) -> torch.optim.Optimizer:
    return torch.optim.AdamW(groups, lr=recipe.lr, betas=_betas(recipe), weight_decay=recipe.weight_decay)


def _lion(groups: Any, recipe: Recipe) -> torch.optim.Optimizer:
    return Lion(groups, lr=recipe.lr, betas=_betas(recipe), weight_decay=recipe.weight_decay)


def _muon(groups: Any, recipe: Recipe) -> torch.optim.Optimizer:
    """Muon on the groups that are for it, AdamW with the same rates on the others."""
    parts: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
    for group in groups:
        parts[group.pop(_FOR_MUON, False)].append(group)
    if not parts[True]:
        rule = "another one for a network without hidden matrices (convolutions are none)"
        raise ArgumentError("optimizer", rule, "muon", "for example adamw")
    return MuonWithAdamW(
        parts[True], parts[False], lr=recipe.lr, momentum=recipe.momentum, weight_decay=recipe.weight_decay
    )


def _betas(recipe: Recipe) -> tuple[float, float]:
    return recipe.momentum, check_beta2(recipe.optimizer, recipe.beta2)


#: name in a recipe → what makes it of parameter groups
BUILDERS: Mapping[str, Callable[[Any, Recipe], torch.optim.Optimizer]] = {
    "sgd": _sgd,
    "nesterov": _sgd,
    "adamw": _adamw,
    "lion": _lion,
    "muon": _muon,
}
#: their names
TRAINED = tuple(BUILDERS)


def make_optimizer(groups: Any, recipe: Recipe) -> torch.optim.Optimizer:
    """The torch optimizer of `recipe` for parameter groups, such as those of `parameter_groups`."""
    return BUILDERS[recipe.optimizer](groups, recipe)


def parameter_groups(model: nn.Module, config: Config) -> list[dict[str, Any]]:
    """The groups that `config` asks for: without decay, with rates by depth, for Muon."""
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    decayed = decayed_weights(model) if config.decay_on == "matrices" else names
    depth_of = depths(model) if config.layer_decay != 1 else dict.fromkeys(names, 0)
    deepest = max(depth_of.values(), default=0)
    shapes = {name: parameter.dim() for name, parameter in model.named_parameters()}
    muon = {name for name in hidden_matrices(model) if shapes[name] == 2} if config.recipe.optimizer == "muon" else ()

    def settings(name: str) -> dict[str, Any]:
        answer: dict[str, Any] = {}
        if name not in decayed:
            answer["weight_decay"] = 0.0
        scale = config.layer_decay ** (deepest - depth_of[name])
        if scale != 1:
            answer |= {"lr": config.recipe.lr * scale, "lr_scale": scale}
        if name in muon:
            answer[_FOR_MUON] = True
        return answer

    return make_groups(names, model, settings)
