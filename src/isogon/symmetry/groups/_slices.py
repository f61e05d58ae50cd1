"""Parameters that are used in slices, such as `c_attn` for queries, keys and values: each slice scales by itself.

The channels that a weight makes are followed through operations that only move elements; where a part of them goes its
own way, the weight has slices.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import fx

from isogon.symmetry import _graph as graph
from isogon.symmetry._labels import LARGEST

# A weight in more slices than this (one per head) keeps one power.
_MOST_SLICES = 16

_MOVES = graph.names(
    "view reshape _unsafe_view flatten unflatten squeeze unsqueeze permute transpose t mT contiguous clone detach to "
    "_to_copy alias type_as float double movedim select slice narrow split split_with_sizes chunk tensor_split unbind "
    "view_as reshape_as"
)
# Argument that is the weight or the bias → the dimension of it that becomes the result's channels.
_MAKERS: dict[str, dict[int, int]] = {
    "linear": {1: 0, 2: 0},
    "addmm": {0: -1, 2: -1},
    "mm": {1: -1},
    "matmul": {1: -1},
    "bmm": {0: 1, 1: 2},
    "_grouped_mm": {1: 2},
    "grouped_mm_fallback": {1: 2},
    "conv1d": {1: 0, 2: 0},
    "conv2d": {1: 0, 2: 0},
    "conv3d": {1: 0, 2: 0},
}


@dataclass(frozen=True)
class Slices:
    """How the channels of one dimension of a parameter are divided: the slice of each channel."""

    dim: int
    of_channel: tuple[int, ...]

    @property
    def count(self) -> int:
        return max(self.of_channel) + 1

    def runs(self) -> tuple[tuple[int, int], ...]:
        """Neighbouring channels of one slice: (slice, channels)."""
        ends = np.flatnonzero(np.diff(self.of_channel, append=-1)) + 1
        starts = np.concatenate([[0], ends[:-1]])
        return tuple((self.of_channel[start], int(end - start)) for start, end in zip(starts, ends, strict=True))

    def names(self, parameter: str) -> tuple[str, ...]:
        """What to call the slices: by what they are for where that is known, else by their channels.

        >>> Slices(0, (0, 0, 1, 1, 2, 2)).names("h.0.attn.c_attn.weight")
        ('q', 'k', 'v')
        >>> Slices(0, (0, 0, 0, 1)).names("mixed.weight")
        ('0:3', '3:4')
        """
        runs = self.runs()
        if len(runs) == self.count:
            layer = ".".join(parameter.lower().split(".")[-2:])
            for letters, marks in _KNOWN.items():
                if len(letters) == self.count and any(
                    re.search(rf"(?<![a-z0-9]){mark}(?![a-z0-9])", layer) for mark in marks
                ):
                    return letters
            ends = np.cumsum([size for _, size in runs])
            return tuple(f"{end - size}:{end}" for (_, size), end in zip(runs, ends, strict=True))
        return tuple(str(number) for number in range(self.count))


_KNOWN: dict[tuple[str, ...], tuple[str, ...]] = {
    ("q", "k", "v"): ("qkv(_proj)?", "c_attn", "in_proj(_weight|_bias)?", "query_key_value"),
    ("k", "v"): ("kv(_proj)?",),
    ("gate", "up"): ("gate_up(_proj)?", "w12"),
}


def find_slices(program: torch.export.ExportedProgram, parameters: Mapping[fx.Node, str]) -> dict[str, Slices]:
    """Parameters whose channels go different ways, by name; `parameters` are their nodes in the graph."""
    sliced: dict[str, Slices] = {}
    for node, name in parameters.items():
        shape = tuple(node.meta["val"].shape)
        dims = {dim for dim, _ in _find_slices_made(node, shape)}
        for dim in sorted(dims):
            parts = [
                labels for at, use in _find_slices_made(node, shape) if at == dim for labels in _parts(use, shape[dim])
            ]
            slices = _divide(shape[dim], parts)
            if 1 < max(slices) + 1 <= _MOST_SLICES and name not in sliced:
                sliced[name] = Slices(dim, slices)
    return sliced


def _divide(size: int, parts: list[Any]) -> tuple[int, ...]:
    """The slice of each channel: channels are in one slice if every part has both or neither."""
    codes = np.zeros(size, np.int64)
    for part in parts:
        _, codes = np.unique(2 * codes + np.isin(np.arange(size), part), return_inverse=True)
    numbers: dict[int, int] = {}
    return tuple(numbers.setdefault(code, len(numbers)) for code in codes.tolist())


def _find_slices_made(node: fx.Node, shape: tuple[int, ...]) -> Iterator[tuple[int, tuple[fx.Node, int]]]:
    """Where the parameter makes channels: its dimension, and the operation with the dimension of its result."""
    for user in node.users:
        name = graph.short_name(user)
        order = _order(user, name, len(shape))
        if order is not None:  # its dimensions have other places by then
            yield from ((order[dim], use) for dim, use in _find_slices_made(user, tuple(shape[dim] for dim in order)))
        elif name in ("to", "_to_copy", "detach", "contiguous", "clone", "alias"):
            yield from _find_slices_made(user, shape)
        elif name in ("index", "index_select") and user.args[0] is node and len(shape) > 2:
            # Experts picked along the first dimension.
            picked = tuple(user.meta["val"].shape)
            yield from (at for at in _find_slices_made(user, picked) if at[0] > 0 and picked[1:] == shape[1:])
        for place, dim in _MAKERS.get(name, {}).items():
            result = user.meta.get("val")
            if len(user.args) > place and user.args[place] is node and isinstance(result, torch.Tensor):
                if name == "matmul" and len(shape) != 2:
                    continue
                after = int(name[4]) if name.startswith("conv") else 1 if (name, place) == ("bmm", 0) else 0
                channel = result.ndim - after - 1
                if result.shape[channel] == shape[dim]:
                    yield dim % len(shape), (user, channel)


def _order(user: fx.Node, name: str, ndim: int) -> list[int] | None:
    """The dimensions of the argument in the order that the result has them; None where nothing is transposed."""
    order: list[Any] = list(range(ndim))
    if name in ("t", "mT") or (name == "numpy_T" and ndim == 2):
        order[-2:] = order[-2:][::-1]
    elif name == "transpose":
        first, second = (int(str(dim)) for dim in user.args[1:3])
        order[first], order[second] = order[second], order[first]
    elif name == "permute":
        dims: Any = user.args[1]
        order = [dim % ndim for dim in dims]
    else:
        return None
    return order


def _parts(use: tuple[fx.Node, int], size: int) -> Iterator[Any]:
    """The sets of channels that go ways of their own after the operation that makes them."""
    node, channel = use
    shape = tuple(node.meta["val"].shape)
    if np.prod(shape) > LARGEST or not _leads_to_a_part(node):
        return
    view = [size if i == channel else 1 for i in range(len(shape))]
    labels = torch.arange(size, dtype=torch.int32).view(view).expand(shape)
    queue: list[tuple[fx.Node, Any]] = [(node, labels)]
    while queue:
        node, labels = queue.pop()
        for user in node.users:
            moved = _move(user, node, labels)
            if moved is None:
                continue
            for piece in moved if isinstance(moved, list | tuple) else [moved]:
                channels = torch.unique(piece)
                if 0 < len(channels) < size:
                    yield channels.numpy()
            queue.append((user, moved))


def _leads_to_a_part(node: fx.Node, depth: int = 8) -> bool:
    """Whether some movement behind `node` picks a part, so that labels are worth moving."""
    parts = ("select", "slice", "narrow", "split", "split_with_sizes", "chunk", "tensor_split", "unbind", "glu")
    return depth > 0 and any(
        graph.short_name(user) in parts or (graph.short_name(user) in _MOVES and _leads_to_a_part(user, depth - 1))
        for user in node.users
        if user.op == "call_function"
    )


def _move(user: fx.Node, node: fx.Node, labels: Any) -> Any:
    if user.op != "call_function":
        return None
    if user.target is operator.getitem:
        place: Any = user.args[1]
        return labels[place] if isinstance(labels, list | tuple) else None
    if not user.args or user.args[0] is not node:
        return None
    if graph.short_name(user) == "glu":
        return labels.chunk(2, user.args[1] if len(user.args) > 1 else -1)
    if graph.short_name(user) not in _MOVES:
        return None
    if isinstance(labels, list | tuple) or any(isinstance(value, fx.Node) for value in user.args[1:]):
        return None
    if graph.short_name(user) in ("to", "_to_copy", "type_as", "float", "double", "detach", "alias", "clone"):
        return labels
    target: Any = user.target
    try:
        return target(labels.contiguous(), *user.args[1:], **user.kwargs)
    except (RuntimeError, TypeError):
        return None
