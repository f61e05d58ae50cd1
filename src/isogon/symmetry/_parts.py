"""Tensors put side by side, and found again by a slice: each is judged as if it had never been beside the others.

A class token passes through the same norms and linear layers as the tokens of an image, and is moved_parts out again.
`Facts.parts` holds the states of what was put side by side, and every operation that treats each of them by itself is
judged for each, too. A slice of one of them is then made of that one's state alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from isogon.symmetry import _graph as graph
from isogon.symmetry._labels import follow_dims
from isogon.symmetry._operation import Operation
from isogon.symmetry._state import State
from isogon.symmetry._values import LARGEST
from isogon.symmetry.rules import concatenate

Parts = tuple[int, tuple[State, ...]]
#: judges an operation with these arguments
Judge = Callable[[Operation, Any, Any], Any]

_EACH_ELEMENT = graph.names("add sub mul div neg abs exp sqrt rsqrt pow relu gelu silu sigmoid tanh dropout leaky_relu")
_MOVES = graph.names(
    "slice select narrow split split_with_sizes chunk unbind view reshape _unsafe_view flatten unflatten permute "
    "transpose t mT movedim squeeze unsqueeze clone contiguous to _to_copy detach alias"
)
_MOST = 8  # parts of one tensor


def with_parts(
    judge: Judge, op: Operation, node: fx.Node, args: Sequence[Any], kwargs: Mapping[str, Any], whole: Any
) -> Any:
    """The operation's result `whole` with the parts that its arguments give it, or made of those it consists of."""
    name = graph.short_name(node)
    if op.rows_are_one or not args or graph.written_argument(node) is not None:
        return whole
    if name in ("cat", "concat", "concatenate") and isinstance(whole, State):
        return _join(whole, args[0], kwargs.get("dim", args[1] if len(args) > 1 else 0) % whole.ndim)
    source = args[0]
    if name in _MOVES and isinstance(source, State) and source.facts.parts is not None and op.run is not None:
        return _move(op, source, *source.facts.parts, whole)
    if isinstance(whole, State):
        parts = _judge_each(judge, op, name, args, kwargs, whole)
        return replace(whole, facts=replace(whole.facts, parts=parts))
    return whole


def _join(whole: State, states: Sequence[State], dim: int) -> State:
    parts: list[State] = []
    for x in states:
        if x.shape != (0,):
            inner = x.facts.parts
            parts += inner[1] if inner is not None and inner[0] == dim else (x,)
    return replace(whole, facts=replace(whole.facts, parts=(dim, tuple(parts)))) if 1 < len(parts) <= _MOST else whole


def _judge_each(
    judge: Judge, op: Operation, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], whole: State
) -> Parts | None:
    """The results for each part of the arguments, where the operation keeps them apart."""
    split = _split_weights(op, args) if name == "linear" else None
    place, sizes, pieces = split or _split_values(op, name, args, whole) or (0, [], [])
    if not sizes or sum(sizes) != whole.shape[place]:
        return None
    parts = []
    for size, given in zip(sizes, pieces, strict=True):
        part = judge(replace(op, shapes=[_resize(whole.shape, place, size)]), given, kwargs)
        parts.append(part.with_(parts=None))
    return place + whole.ndim, tuple(parts)


#: where the parts are, counted from the end, as dimensions are aligned; their sizes; the arguments for each
Split = tuple[int, list[int], list[list[Any]]]


def _split_values(op: Operation, name: str, args: Sequence[Any], whole: State) -> Split | None:
    """The arguments of an operation on each element, or each vector, by the parts of the first that has some."""
    mixed = {"linear": 1, "layer_norm": len(args[1]) if name == "layer_norm" else 0}.get(name, 0)
    if not mixed and name not in _EACH_ELEMENT:
        return None
    values = args[:1] if mixed else args  # the others are weights
    x = next((x for x in values if isinstance(x, State) and x.facts.parts is not None), None)
    if x is None or x.facts.parts is None:
        return None
    place = x.facts.parts[0] - x.ndim
    sizes = [part.shape[place] for part in x.facts.parts[1]]
    if place >= -mixed or whole.shape[place] != sum(sizes):
        return None
    pieces = []
    for k in range(len(sizes)):
        given = [_piece(op, x, place, sizes, k) if isinstance(x, State) else x for x in values]
        if any(piece is None and x is not None for piece, x in zip(given, values, strict=True)):
            return None
        pieces.append([*given, *args[len(values) :]])
    return place, sizes, pieces


def _split_weights(op: Operation, args: Sequence[Any]) -> Split | None:
    """The arguments of a linear layer by the parts of its bias: those of queries, keys and values."""
    values, weight, bias = (*args, None, None)[:3]
    if not isinstance(bias, State) or bias.facts.parts is None:
        return None
    sizes = [part.shape[0] for part in bias.facts.parts[1]]
    weights = [_piece(op, weight, -2, sizes, k) for k in range(len(sizes))]
    if any(piece is None for piece in weights):
        return None
    return -1, sizes, [[values, *given] for given in zip(weights, bias.facts.parts[1], strict=True)]


def _piece(op: Operation, x: State, place: int, sizes: Sequence[int], k: int) -> State | None:
    """What belongs to the k-th part of `sizes` along the dimension `place`; None where that is not known."""
    if x.ndim < -place or x.shape[place] == 1:
        return x
    dim, parts = x.facts.parts or (-1, ())
    if dim == place + x.ndim and [part.shape[dim] for part in parts] == list(sizes):
        return parts[k]
    if dim >= 0 or (x.runs > 1 and x.dim == place + x.ndim):
        return None
    shape = _resize(x.shape, place, sizes[k])
    start = sum(sizes[:k])
    part = op.move(x, shape, [1 << i for i in range(x.ndim)], lambda labels: labels.narrow(place, start, sizes[k]))
    return part.with_(label=x.label, free=x.free)


def _move(op: Operation, x: State, dim: int, parts: Sequence[State], whole: Any) -> Any:
    """The moved parts of `x`, found by moving their numbers."""
    assert op.run is not None
    if math.prod(x.shape) > LARGEST:
        return whole
    sizes = [part.shape[dim] for part in parts]
    numbers = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    numbers = numbers.view([-1 if i == dim else 1 for i in range(x.ndim)]).expand(x.shape)
    try:
        moved = op.run(numbers)
    except (RuntimeError, TypeError):
        return whole
    results = whole if isinstance(whole, list) else [whole]
    out = []
    for k, (result, where) in enumerate(zip(results, moved if isinstance(whole, list) else [moved], strict=True)):

        def run(labels: Any, k: int = k) -> Any:
            given = op.run(labels)  # type: ignore[misc]
            return given[k] if isinstance(whole, list) else given

        out.append(_take(replace(op, shapes=[result.shape], run=run), x, dim, parts, where, result))
    return out if isinstance(whole, list) else out[0]


def _take(op: Operation, x: State, dim: int, parts: Sequence[State], where: torch.Tensor, whole: State) -> State:
    """One result of a move, of which `where` says which part each element is of."""
    lines = [where[tuple(slice(None) if j == i else 0 for j in range(where.ndim))] for i in range(where.ndim)]
    along = [i for i, line in enumerate(lines) if line.numel() and bool((line != line[0]).any())]
    table = follow_dims(x.shape, op.run) if op.run is not None else None
    if where.numel() == 0 or len(along) > 1 or table is None or tuple(where.shape) != whole.shape:
        return whole
    if not along:
        if bool((where != where.flatten()[0]).any()):
            return whole
        return _move_part(op, x, dim, parts, int(where.flatten()[0]), table, whole.shape, None)
    place = along[0]
    line = lines[place]
    if bool((where != line.view([-1 if i == place else 1 for i in range(where.ndim)])).any()):
        return whole
    numbers, counts = torch.unique_consecutive(line, return_counts=True)
    if len(set(numbers.tolist())) < len(numbers):
        return whole
    moved_parts, start = [], 0
    for number, size in zip(numbers.tolist(), counts.tolist(), strict=True):
        shape = _resize(whole.shape, place, size)
        moved_parts.append(_move_part(op, x, dim, parts, int(number), table, shape, (place, start, size)))
        start += size
    if len(moved_parts) < len(parts):
        whole = concatenate(op, moved_parts, place)
    return replace(whole, facts=replace(whole.facts, parts=(place, tuple(moved_parts))))


def _move_part(
    op: Operation,
    x: State,
    dim: int,
    parts: Sequence[State],
    number: int,
    table: Sequence[int],
    shape: tuple[int, ...],
    block: tuple[int, int, int] | None,
) -> State:
    """What the move makes of one part, which then has this shape, and is this `block` of the result."""
    start, size = sum(part.shape[dim] for part in parts[:number]), parts[number].shape[dim]

    def run(labels: Any) -> Any:
        full = torch.zeros(x.shape, dtype=labels.dtype)
        full.narrow(dim, start, size).copy_(labels)
        moved = op.run(full)  # type: ignore[misc]
        return moved if block is None else moved.narrow(*block)

    return replace(op, shapes=[shape]).move(parts[number], shape, table, run)


def _resize(shape: tuple[int, ...], place: int, size: int) -> tuple[int, ...]:
    place %= len(shape)
    return (*shape[:place], size, *shape[place + 1 :])
