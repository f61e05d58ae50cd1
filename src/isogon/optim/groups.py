"""Which parameters of an optimizer are scale-invariant, and parameter groups that keep the two kinds apart."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from isogon.errors import ArgumentError
from isogon.symmetry import ScaleMap


def invariant_names(scale_map: ScaleMap) -> frozenset[str]:
    """Every trainable parameter of a jointly invariant model, else those that are invariant by themselves."""
    return frozenset(scale_map.alone if scale_map.is_invariant else scale_map.invariant)


def split_groups(model: nn.Module, scale_map: ScaleMap, **options: Any) -> list[dict[str, Any]]:
    """Two parameter groups for an optimizer, the invariant weights first; `options` go into both.

    A group that would be empty is left out.
    """
    names = invariant_names(scale_map)
    groups: list[list[nn.Parameter]] = [[], []]
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            groups[name not in names].append(parameter)
    return [{"params": parameters, **options} for parameters in groups if parameters]


def invariant_groups(
    optimizer: torch.optim.Optimizer, model: nn.Module | None, scale_map: ScaleMap | None
) -> list[bool]:
    """For each group whether its weights are invariant; a group that mixes the two kinds is refused.

    Without a map every weight counts as invariant.
    """
    if scale_map is None:
        return [True] * len(optimizer.param_groups)
    if model is None:
        raise ArgumentError(
            "model", "given with a scale_map", None, "the map speaks of names, the optimizer of tensors"
        )
    invariant = invariant_names(scale_map)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    verdicts = []
    for number, group in enumerate(optimizer.param_groups):
        inside = [names.get(id(parameter), "a parameter of another model") for parameter in group["params"]]
        others = [name for name in inside if name not in invariant]
        if others and len(others) < len(inside):
            raise ArgumentError(
                f"group {number}",
                "all invariant or not at all",
                f"{len(inside) - len(others)} invariant and {', '.join(others[:3])}{' …' if len(others) > 3 else ''}",
                "make the groups with isogon.optim.split_groups",
            )
        verdicts.append(not others)
    if not any(verdicts):
        raise ArgumentError(
            "scale_map", "of a model with invariant weights", scale_map.verdict, "make it so with isogon.convert"
        )
    return verdicts
