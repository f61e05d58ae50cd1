"""Which tensors are watched, under which names, and which of them make up the layer `all`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from isogon.errors import ArgumentError, first_line
from isogon.symmetry import ExportError, ScaleMap, check


@dataclass(frozen=True)
class Watched:
    """What is watched, one entry per tensor: `layers` marks those with rows of their own; all of them make up `all`.

    `mapped` is False where no scale map is at hand: then the radial leak decides what is joined and what is predicted.
    `silence` is why nothing is predicted at all, None where something may be.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    layers: NDArray[np.bool_]
    mapped: bool
    silence: str | None = None


def plain_name(name: str) -> str:
    """A parameter's name without what wrappers put in: DataParallel's `module.`, torch.compile's `_orig_mod.`.

    >>> plain_name("module._orig_mod.body.0._orig_mod.weight")
    'body.0.weight'
    """
    parts = [part for part in name.split(".") if part != "_orig_mod"]
    while len(parts) > 1 and parts[0] == "module":
        parts = parts[1:]
    return ".".join(parts)


def check_model(model: nn.Module, inputs: Any) -> tuple[ScaleMap | None, str | None]:
    """`check` of the model, or None and the reason where it cannot be followed.

    `inputs` is a tensor, a tuple of positional arguments or a mapping of named ones.
    """
    try:
        if isinstance(inputs, Mapping):
            return check(model, kwargs=inputs), None
        return check(model, *(inputs if isinstance(inputs, tuple | list) else (inputs,))), None
    except ExportError as error:
        return None, f"isogon.check cannot follow this model ({first_line(error)})"


def trained_parameters(model: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> dict[str, nn.Parameter]:
    """The model's trainable parameters that an optimizer has, by plain name; a tied weight under its first name."""
    stepped = {id(p) for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}
    parameters = {
        plain_name(name): p
        for name, p in model.named_parameters()
        if p.requires_grad and p.numel() and id(p) in stepped
    }
    if not parameters:
        raise ArgumentError(
            "optimizer",
            "one that has trainable parameters of the model",
            [type(optimizer).__name__ for optimizer in optimizers],
            "make the monitor from the model that the optimizer trains",
        )
    return parameters


def choose(
    parameters: Mapping[str, nn.Parameter], scale_map: ScaleMap | None, *, silence: str | None = None
) -> Watched:
    """What to watch of `parameters`; `silence` is why theory predicts nothing for them, if known already.

    With a map: rows for the parameters invariant by themselves; `all` joins every parameter when the model is jointly
    invariant, else those. Without: rows for tensors of two or more dimensions, and the radial leak decides about `all`.
    Where theory is silent: rows for tensors of two or more dimensions, all of which `all` joins.
    """
    alone: set[str] = set()
    jointly = False
    if scale_map is not None:
        alone, jointly = {plain_name(name) for name in scale_map.invariant} & set(parameters), scale_map.is_invariant
        if not alone and not jointly:
            silence = f"no weight of this model is scale-invariant ({scale_map.explain().rstrip('.')})"
    if not alone and not jointly:
        # A model of vectors alone is measured too.
        alone = {name for name, p in parameters.items() if p.dim() >= 2} or set(parameters)
    names = [name for name in parameters if jointly or name in alone]
    return Watched(
        names=tuple(names),
        sizes=tuple(parameters[name].numel() for name in names),
        layers=np.array([name in alone for name in names]),
        mapped=scale_map is not None,
        silence=silence,
    )
