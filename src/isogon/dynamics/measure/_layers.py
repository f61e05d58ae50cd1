"""Which tensors are watched, under which names, and which of them make up the layer `all`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils._pytree import tree_map_only

from isogon.errors import ArgumentError, first_line
from isogon.symmetry import ExportError, ScaleMap, Symmetries, check, scaling_text, symmetries

#: the layer that joins tensors
ALL = "all"
#: the largest group of matrices that scale together: what is added up in a transformer
RESIDUAL = "group:residual"


@dataclass(frozen=True)
class Watched:
    """What is watched, one entry per tensor, and the layers made of it.

    `layers` marks the tensors with rows of their own and `lawful` those of which theory speaks; `groups` are layers
    made of several tensors, by their places. `joined` marks those that make up the layer `all`, to which a law applies
    where `joint` is True, or where one applies to a member. `mapped` is False where no scale map is at hand: then the
    radial leak decides about the laws and what is joined. `silence` is why nothing is predicted at all, None where
    something may be; `notes` are remarks on single layers, by their names.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    layers: NDArray[np.bool_]
    lawful: NDArray[np.bool_]
    joined: NDArray[np.bool_]
    joint: bool
    mapped: bool
    groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    silence: str | None = None
    notes: Mapping[str, str] = field(default_factory=dict)


def plain_name(name: str) -> str:
    """A parameter's name without what wrappers put in: DataParallel's `module.`, torch.compile's `_orig_mod.`.

    >>> plain_name("module._orig_mod.body.0._orig_mod.weight")
    'body.0.weight'
    """
    parts = [part for part in name.split(".") if part != "_orig_mod"]
    while len(parts) > 1 and parts[0] == "module":
        parts = parts[1:]
    return ".".join(parts)


def check_model(model: nn.Module, inputs: Any) -> tuple[ScaleMap | None, Symmetries | None, str | None]:
    """`check` and `symmetries` of the model, or None and the reason where it cannot be followed.

    `inputs` is a tensor, a tuple of positional arguments or a mapping of named ones.
    """
    args, kwargs = ((), inputs) if isinstance(inputs, Mapping) else (inputs, {})
    args = args if isinstance(args, tuple | list) else (args,)
    # An example may have stayed where it was made when the model moved to its device, as under a Trainer.
    device = next((parameter.device for parameter in model.parameters()), None)
    args, kwargs = tree_map_only(torch.Tensor, lambda tensor: tensor.to(device), (tuple(args), dict(kwargs)))
    try:
        return check(model, *args, kwargs=kwargs), symmetries(model, *args, kwargs=kwargs), None
    except ExportError as error:
        return None, None, f"isogon.check cannot follow this model ({first_line(error)})"


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
    parameters: Mapping[str, nn.Parameter],
    scale_map: ScaleMap | None,
    answer: Symmetries | None = None,
    *,
    silence: str | None = None,
) -> Watched:
    """What to watch of `parameters`; `silence` is why theory predicts nothing for them, if known already.

    With a map: rows for the parameters invariant by themselves; `all` joins every parameter when the model is jointly
    invariant, or when none of those is a matrix, else those. With symmetries as well: each group of weights that scale
    together is a layer too, and every other tensor of two or more dimensions has rows without a law. Without a map:
    rows for tensors of two or more dimensions, and the radial leak decides about laws and `all`. Where theory is
    silent: the same rows, all of which `all` joins.
    """
    matrices = {name for name, p in parameters.items() if p.dim() >= 2}
    alone: set[str] = set()
    jointly = False
    groups: dict[str, tuple[str, ...]] = {}
    notes: dict[str, str] = {}
    if scale_map is not None:
        alone, jointly = {plain_name(name) for name in scale_map.invariant} & set(parameters), scale_map.is_invariant
        if answer is not None:
            groups, notes = _name_groups(answer, parameters)
        if not alone and not jointly and not groups:
            silence = _describe_silence(scale_map, answer)
        elif answer is not None:
            notes |= _describe_ties(answer)
    lawful = set(parameters) if scale_map is None else alone
    rows = set(alone)
    if answer is not None or not (alone or jointly):
        # A model of vectors alone is measured too.
        rows |= matrices or set(parameters)
    grouped = {name for members in groups.values() for name in members}
    names = [name for name in parameters if jointly or name in rows or name in grouped]
    # Of vectors alone, such as biases of keys, `all` would say nothing of the network.
    joined = alone if alone & matrices and not jointly else set(names)
    return Watched(
        names=tuple(names),
        sizes=tuple(parameters[name].numel() for name in names),
        layers=np.array([name in rows for name in names], dtype=bool),
        lawful=np.array([name in lawful for name in names], dtype=bool),
        joined=np.array([name in joined for name in names], dtype=bool),
        joint=jointly,
        mapped=scale_map is not None,
        groups={layer: tuple(names.index(name) for name in members) for layer, members in groups.items()},
        silence=silence,
        notes=notes,
    )


def _name_groups(
    answer: Symmetries, parameters: Mapping[str, nn.Parameter]
) -> tuple[dict[str, tuple[str, ...]], dict[str, str]]:
    """The groups by the names of their layers, and remarks on those that cannot be measured.

    Those of vectors alone are left out, like single vectors: γ and β of a normalisation before the next one.
    """
    groups: dict[str, tuple[str, ...]] = {}
    notes: dict[str, str] = {}
    place = {name: i for i, name in enumerate(parameters)}
    plain = [sorted(map(plain_name, group), key=lambda name: place.get(name, len(place))) for group in answer.groups]
    for members in sorted(plain, key=len, reverse=True):
        if len(members) < 2 or not _matrices(members, parameters):
            continue
        name = _name_group(members, _matrices(members, parameters), groups)
        missing = [member for member in members if member not in parameters]
        if missing:
            why = "is a part of a weight" if "[" in missing[0] else "is not trained by this optimizer"
            notes[name] = f"is not measured, since {missing[0]} {why}"
        else:
            groups[name] = tuple(members)
    return groups, notes


def _matrices(members: Sequence[str], parameters: Mapping[str, nn.Parameter]) -> int:
    """How many of the members have two dimensions or more; a member may be a part of a weight (`qkv.weight[v]`)."""
    weights = [parameters.get(name.partition("[")[0]) for name in members]
    return sum(weight is not None and weight.dim() >= 2 for weight in weights)


def _name_group(members: Sequence[str], matrices: int, used: Mapping[str, Any]) -> str:
    """`group:residual` for the largest with three matrices or more, else what its members' names have in common."""
    if matrices >= 3 and RESIDUAL not in used:
        return RESIDUAL
    parts = [name.split(".") for name in members]
    common = [column[0] for column in takewhile(lambda column: len(set(column)) == 1, zip(*parts, strict=False))]
    name = f"group:{'.'.join(common) or members[0]}"
    return name if name not in used else f"group:{members[0]}"


def _describe_silence(scale_map: ScaleMap, answer: Symmetries | None) -> str:
    if answer is None:
        return f"no weight of this model is scale-invariant ({scale_map.explain().rstrip('.')})"
    ties = "".join(f"; {name} {how}" for name, how in _describe_ties(answer).items())
    return f"no weight and no group of weights of this model is scale-invariant{ties}"


def _describe_ties(answer: Symmetries) -> dict[str, str]:
    """Of weights that are used in two places the scaling that is left to them, where it is no group's."""
    ties = {}
    grouped = {name for group in answer.groups for name in group}
    for tied, others in answer.aliases.items():
        vector = next((vector for vector in answer.basis if tied in vector), None)
        if tied not in grouped:
            left = "has no scale that is free" if vector is None else f"scales only in {scaling_text(vector)}"
            ties[plain_name(tied)] = f"is tied to {', '.join(map(plain_name, others))} and {left}"
    return ties
