"""Which weights are hidden matrices, which are decayed, how deep each lies: parameter groups as people make them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

from isogon.symmetry import unwrap

#: in the name of a parameter that its module holds without a layer round it, such as `positions` or `class_token`
_TABLES = ("pos", "token", "embed")


def decayed_weights(model: nn.Module) -> tuple[str, ...]:
    """The names of weights that weight decay is usually for: two or more dimensions, neither embeddings nor positions.

    >>> from isogon import nets
    >>> decayed_weights(nets.gpt(7, 4, depth=1, width=8, heads=2))[:2]
    ('blocks.0.attention.q.weight', 'blocks.0.attention.k.weight')
    """
    return tuple(name for name, _ in _weights(model))


def hidden_matrices(model: nn.Module) -> tuple[str, ...]:
    """The names of `decayed_weights` without the last layer, the head: what Muon is for, where they are matrices."""
    linear = [module for module in unwrap(model).modules() if isinstance(module, nn.Linear)]
    head = linear[-1] if linear else None  # tied to an embedding or not
    return tuple(name for name, owner in _weights(model) if owner is not head)


def _weights(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """The decayed weights and the modules that own them, in order; one that is tied to an embedding is left out."""
    model = unwrap(model)
    modules = dict(model.named_modules())
    owners = {name: modules[name.rpartition(".")[0]] for name, _ in model.named_parameters()}
    tables = {id(module.weight) for module in modules.values() if isinstance(module, nn.Embedding | nn.EmbeddingBag)}
    return [
        (name, owners[name])
        for name, weight in model.named_parameters()
        if weight.requires_grad
        and weight.dim() >= 2
        and id(weight) not in tables
        and not any(part in name.rpartition(".")[2] for part in _TABLES)
    ]


def depths(model: nn.Module) -> dict[str, int]:
    """How deep each parameter lies: 0 before the longest row of equal blocks, 1, 2, … in it, one more behind it.

    >>> model = nn.Sequential(nn.Linear(2, 4), nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), nn.Linear(4, 1))
    >>> [depths(model)[f"{name}.weight"] for name in ("0", "1.0", "1.1", "2")]
    [0, 1, 2, 3]
    """
    model = unwrap(model)
    rows = {
        name: max(Counter(type(child) for child in module.children()).values(), default=0)
        for name, module in model.named_modules()
        if isinstance(module, nn.Sequential | nn.ModuleList)
    }
    repeating = [name for name, count in rows.items() if name and count > 1]
    # Not a row within another, such as the experts of a block; a plain Sequential is one itself.
    outer = [name for name in repeating if not any(name.startswith(f"{other}.") for other in repeating)]
    row = max(outer, key=lambda name: rows[name], default="" if "" in rows else None)
    answers: dict[str, int] = {}
    reached = 0
    for name, _ in model.named_parameters():
        inside = row is not None and (row == "" or name.startswith(f"{row}."))
        if inside:
            number = name.removeprefix(f"{row}." if row else "").partition(".")[0]
            reached = 1 + int(number) if number.isdecimal() else reached
        elif reached:
            answers[name] = 1 + len(list(model.get_submodule(row or "").children()))
            continue
        answers[name] = reached
    return answers


def make_groups(
    names: Iterable[str], model: nn.Module, settings: Callable[[str], dict[str, Any]]
) -> list[dict[str, Any]]:
    """Parameter groups of the weights `names`, one per kind of `settings` that a name has."""
    parameters = dict(unwrap(model).named_parameters())
    groups: dict[tuple[tuple[str, Any], ...], list[nn.Parameter]] = {}
    for name in names:
        groups.setdefault(tuple(sorted(settings(name).items())), []).append(parameters[name])
    return [{"params": weights, **dict(kind)} for kind, weights in groups.items()]
