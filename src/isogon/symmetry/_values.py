"""What is known of the elements of a tensor: whole numbers that nothing changes, and which elements are one weight.

Positions, indices of a table of relative positions and masks are computed in the graph from numbers that neither an
input nor a parameter decides: they are computed here as well (`Facts.numbers`). A table in training that is read at
such indices holds the same weight wherever the index is the same: that is its `Facts.pattern`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves, tree_map

from isogon.symmetry import _graph as graph
from isogon.symmetry._state import State, varying_dims

#: elements; a sequence of 1,448 tokens has so many pairs of positions
LARGEST = 1 << 21
_PICKS = graph.names("index _unsafe_index embedding index_select gather select slice narrow")
_MOVES = graph.names(
    "view reshape _unsafe_view flatten unflatten squeeze unsqueeze permute transpose t mT expand broadcast_to repeat "
    "contiguous clone flip roll tile"
)


class _UnknownNumbersError(Exception):
    """An argument whose numbers are not known."""


def with_values(node: fx.Node, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Any:
    """The operation's result with the numbers or the pattern that its arguments give it."""
    if not isinstance(result, State) or not 0 < math.prod(result.shape) <= LARGEST:
        return result
    try:
        if not result.floating or all(_is_known(x) for x in tree_leaves((args, kwargs))):
            return _with_numbers(node, args, kwargs, result)
        return _with_pattern(node, args, kwargs, result)
    except (_UnknownNumbersError, RuntimeError, TypeError, ValueError, IndexError, NotImplementedError):
        return result


def numbers_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """The numbers in a tensor, where there are not too many."""
    return tensor.detach() if not tensor.is_meta and tensor.numel() <= LARGEST else None


def _is_known(argument: Any) -> bool:
    return not isinstance(argument, State) or argument.facts.numbers is not None


def _with_numbers(node: fx.Node, args: Sequence[Any], kwargs: Mapping[str, Any], result: State) -> State:
    target: Any = node.target
    if torch.Tag.nondeterministic_seeded in getattr(target, "tags", ()) or graph.short_name(node).startswith("empty"):
        return result
    out = target(*_concrete(list(args)), **_concrete({**kwargs, **_on_cpu(kwargs)}))
    numbers = numbers_of(out) if isinstance(out, torch.Tensor) and tuple(out.shape) == result.shape else None
    return replace(result, facts=replace(result.facts, numbers=numbers))


def _with_pattern(node: fx.Node, args: Sequence[Any], kwargs: Mapping[str, Any], result: State) -> State:
    name, source = graph.short_name(node), args[0] if args else None
    if not isinstance(source, State) or name not in _PICKS | _MOVES:
        return result
    labels = source.facts.pattern
    if labels is None and source.free and name in _PICKS and math.prod(source.shape) <= LARGEST:
        labels = torch.arange(math.prod(source.shape)).view(source.shape)
    if labels is None or tuple(labels.shape) != source.shape:
        return result
    target: Any = node.target
    exact = source.free or varying_dims(labels)[0] == source.varies
    try:
        moved = target(labels, *_concrete(list(args[1:])), **_concrete(dict(kwargs)))
    except _UnknownNumbersError:
        # Wherever it is read, other dimensions than those of the index differ as they did.
        moved, exact = target(labels, *_first(list(args[1:])), **_first(dict(kwargs))), False
    if not isinstance(moved, torch.Tensor) or tuple(moved.shape) != result.shape:
        return result
    varies = varying_dims(moved)[0] if exact else result.varies
    return replace(result, varies=varies, facts=replace(result.facts, pattern=moved))


def _on_cpu(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {"device": torch.device("cpu")} if "device" in kwargs else {}


def _first(arguments: Any) -> Any:
    """The arguments with zeros in place of indices."""

    def zeros(value: Any) -> Any:
        if isinstance(value, State) and value.floating:
            raise _UnknownNumbersError
        return torch.zeros(value.shape, dtype=torch.long) if isinstance(value, State) else value

    return tree_map(zeros, arguments)


def _concrete(arguments: Any) -> Any:
    """The arguments with copies of the numbers in place of states: an operation in place must change none of ours."""

    def numbers(value: Any) -> Any:
        if not isinstance(value, State):
            return value
        if value.facts.numbers is None or tuple(value.facts.numbers.shape) != value.shape:
            raise _UnknownNumbersError
        return value.facts.numbers.clone()

    return tree_map(numbers, arguments)
