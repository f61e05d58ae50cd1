"""Which tensors are watched, under which names, and which of them make up the layer `all`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from isogon.dynamics.rows import Tensors
from isogon.errors import ArgumentError
from isogon.symmetry import ScaleMap, check


def plain_name(name: str) -> str:
    """A parameter's name without what wrappers put in: DataParallel's `module.`, torch.compile's `_orig_mod.`.

    >>> plain_name("module._orig_mod.body.0._orig_mod.weight")
    'body.0.weight'
    """
    parts = [part for part in name.split(".") if part != "_orig_mod"]
    while len(parts) > 1 and parts[0] == "module":
        parts = parts[1:]
    return ".".join(parts)


def scale_map_of(model: nn.Module, inputs: Any) -> ScaleMap:
    """`check` of the model; `inputs` is a tensor, a tuple of positional arguments or a mapping of named ones."""
    if isinstance(inputs, Mapping):
        return check(model, kwargs=inputs)
    return check(model, *(inputs if isinstance(inputs, tuple | list) else (inputs,)))


def trained(model: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> dict[str, nn.Parameter]:
    """The model's trainable parameters that an optimizer has, by plain name; a tied weight under its first name."""
    stepped = {id(p) for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}
    found = {
        plain_name(name): p
        for name, p in model.named_parameters()
        if p.requires_grad and p.numel() and id(p) in stepped
    }
    if not found:
        raise ArgumentError(
            "optimizer",
            "one that has trainable parameters of the model",
            [type(optimizer).__name__ for optimizer in optimizers],
            "make the monitor from the model that the optimizer trains",
        )
    return found


def choose(parameters: Mapping[str, nn.Parameter], scale_map: ScaleMap | None) -> Tensors:
    """What to watch of `parameters`.

    With a map: rows for the parameters invariant by themselves; `all` joins every parameter when the model is jointly
    invariant, else those. Without: rows for tensors of two or more dimensions, and the radial leak decides about `all`.
    """
    if scale_map is None:
        own = {name for name, p in parameters.items() if p.dim() >= 2}
    else:
        own = {plain_name(name) for name in scale_map.invariant} & set(parameters)
    jointly = scale_map is not None and scale_map.is_invariant
    names = [name for name in parameters if jointly or name in own]
    if not names:
        what = "with a tensor of two or more dimensions" if scale_map is None else "with a scale-invariant parameter"
        raise ArgumentError("model", what, list(parameters), "see isogon.check(model, inputs) for what breaks it")
    return Tensors(
        names=tuple(names),
        sizes=tuple(parameters[name].numel() for name in names),
        layers=np.array([name in own for name in names]),
        mapped=scale_map is not None,
    )
