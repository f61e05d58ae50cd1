"""Which parameters of an optimizer are scale-invariant, and parameter groups that keep the two kinds apart."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from isogon.errors import ArgumentError
from isogon.symmetry import ScaleMap, unwrap


def invariant_names(scale_map: ScaleMap) -> frozenset[str]:
    """Every trainable parameter of a jointly invariant model, else those that are invariant by themselves."""
    return frozenset(scale_map.alone if scale_map.is_invariant else scale_map.invariant)


def split_groups(model: nn.Module, scale_map: ScaleMap, **options: Any) -> list[dict[str, Any]]:
    """Two parameter groups for an optimizer, the invariant weights first; `options` go into both.

    A group that would be empty is left out.
    """
    names = invariant_names(scale_map)
    groups: list[list[nn.Parameter]] = [[], []]
    for name, parameter in unwrap(model).named_parameters():
        if parameter.requires_grad:
            groups[name not in names].append(parameter)
    return [{"params": parameters, **options} for parameters in groups if parameters]


def group_names(optimizer: torch.optim.Optimizer, model: nn.Module | None) -> list[list[str]]:
    """The names in `model` of each group's parameters; none without a model."""
    if model is None:
        return [[] for _ in optimizer.param_groups]
    names = {id(parameter): name for name, parameter in unwrap(model).named_parameters()}
    return [
        [names.get(id(parameter), "a parameter of another model") for parameter in group["params"]]
        for group in optimizer.param_groups
    ]


def invariant_groups(
    optimizer: torch.optim.Optimizer, model: nn.Module | None, scale_map: ScaleMap | None
) -> list[bool]:
    """For each group whether its weights are invariant; a group that mixes the two kinds is refused.

    Without model and map every weight counts as invariant.
    """
    if scale_map is None and model is None:
        return [True] * len(optimizer.param_groups)
    if scale_map is None:
        raise ArgumentError("scale_map", "given with a model", None, "isogon.check(model, inputs) makes it")
    if model is None:
        raise ArgumentError("model", "given with a scale_map", None, "the map has names, the optimizer tensors")
    groups = group_names(optimizer, model)
    # Joint invariance is of no use where a part of the weights is trained by another optimizer, or not at all.
    has_all = set(scale_map.alone) <= {name for group in groups for name in group}
    invariant = invariant_names(scale_map) if has_all else frozenset(scale_map.invariant)
    verdicts = []
    for number, inside in enumerate(groups):
        others = [name for name in inside if name not in invariant]
        if others and len(others) < len(inside):
            raise ArgumentError(
                f"group {number}",
                "all invariant or not at all",
                f"{len(inside) - len(others)} invariant and {list_names(others)}",
                "make the groups with isogon.optim.split_groups",
            )
        verdicts.append(not others)
    if not any(verdicts):
        raise ArgumentError(
            "scale_map",
            "of a model with invariant weights",
            f"none among {list_names([name for group in groups for name in group])}",
            "make it so with isogon.convert",
        )
    return verdicts


def list_names(names: list[str]) -> str:
    """The first few of `names` for a sentence."""
    return ", ".join(names[:3]) + (" …" if len(names) > 3 else "")
