"""Rules for operations that move, pick, repeat or join elements and compute nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from isogon.symmetry import _state as st
from isogon.symmetry._labels import follow_dims
from isogon.symmetry._operation import Operation
from isogon.symmetry._state import State
from isogon.symmetry.rules._registry import aten, register_rule


def reshape_table(before: Sequence[int], after: Sequence[int]) -> list[int]:
    """For each dimension of `before`, the dimensions of `after` that its index can reach when a tensor is reshaped.

    >>> reshape_table((2, 3, 4, 5), (2, 12, 5))
    [1, 2, 2, 4]
    >>> reshape_table((6, 5), (2, 3, 1, 5))
    [3, 8]
    """
    table = [0] * len(before)
    inputs = [i for i, n in enumerate(before) if n != 1]
    outputs = [j for j, n in enumerate(after) if n != 1]
    while inputs and outputs:
        group_in, group_out = [inputs.pop(0)], [outputs.pop(0)]
        size_in, size_out = before[group_in[0]], after[group_out[0]]
        while size_in != size_out and (inputs if size_in < size_out else outputs):
            if size_in < size_out:
                group_in.append(inputs.pop(0))
                size_in *= before[group_in[-1]]
            else:
                group_out.append(outputs.pop(0))
                size_out *= after[group_out[-1]]
        for i in group_in:
            table[i] = sum(1 << j for j in group_out)
    return table


def reshape_to(op: Operation, x: State, shape: tuple[int, ...]) -> State:
    out = op.move(x, shape, reshape_table(x.shape, shape), lambda labels: labels.reshape(shape))
    return out.with_(label=x.label, free=x.free, centre=x.centre)


@register_rule("aten.view.dtype")
def view_bits(op: Operation, self: State, *_: Any) -> State:
    return op.unknown(self, why=f"{op.place} reads the bits of {{0}} as another type")


@register_rule(*aten("view reshape _unsafe_view flatten unflatten squeeze unsqueeze view_as reshape_as ravel"))
def reshape(op: Operation, self: State, *_: Any, **__: Any) -> State:
    return reshape_to(op, self, op.shape)


@register_rule(
    *aten(
        "clone contiguous alias lift_fresh_copy lift_fresh detach to _to_copy type_as float double half cpu cuda "
        "requires_grad _assert_tensor_metadata resolve_conj resolve_neg conj_physical _conj positive"
    )
)
def same(op: Operation, self: State, *_: Any, **__: Any) -> State:
    if op.short == "detach" and op.floating and not self.is_zero and (np.nan_to_num(self.degree, nan=1.0) != 0).any():
        op.note(
            f"{op.module or 'the model'} detaches a tensor that changes with the parameters: values are judged here, "
            "and the gradient misses what is detached."
        )
    if self.floating and not op.floating:  # a cast to integers or booleans
        return op.require_zero(self)
    return self if self.floating == op.floating else self.with_(floating=op.floating)


def _permute_dims(op: Operation, x: State, order: Sequence[int]) -> State:
    order = [d % x.ndim for d in order]
    table = [1 << order.index(i) for i in range(x.ndim)]
    out = op.move(x, [x.shape[d] for d in order], table, lambda labels: labels.permute(order))
    return out.with_(label=x.label, free=x.free)


@register_rule("aten.permute")
def permute(op: Operation, self: State, dims: Sequence[int]) -> State:
    return _permute_dims(op, self, dims)


@register_rule("aten.transpose", "aten.swapaxes", "aten.swapdims")
def transpose(op: Operation, self: State, dim0: int, dim1: int) -> State:
    order = list(range(self.ndim))
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return _permute_dims(op, self, order)


@register_rule("aten.t", "aten.matrix_H", "aten.mH", "aten.mT", "aten.adjoint")
def matrix_transpose(op: Operation, self: State) -> State:
    return self if self.ndim < 2 else transpose(op, self, -2, -1)


@register_rule("aten.numpy_T")
def reverse_dimensions(op: Operation, self: State) -> State:
    return _permute_dims(op, self, range(self.ndim)[::-1])


@register_rule("aten.movedim", "aten.moveaxis")
def move_dimension(op: Operation, self: State, source: Any, destination: Any) -> State:
    source, destination = ([x] if isinstance(x, int) else list(x) for x in (source, destination))
    source, destination = [s % self.ndim for s in source], [d % self.ndim for d in destination]
    rest = [i for i in range(self.ndim) if i not in source]
    order = [-1] * self.ndim
    for s, d in zip(source, destination, strict=True):
        order[d] = s
    for i, d in enumerate(order):
        if d < 0:
            order[i] = rest.pop(0)
    return _permute_dims(op, self, order)


@register_rule("aten.expand", "aten.expand_as", "aten.broadcast_to")
def expand(op: Operation, self: State, *_: Any, **__: Any) -> State:
    # `varies` is unchanged: repeated copies of one element do not vary.
    return op.lift(self, op.shape).with_(label="")


@register_rule("aten.broadcast_tensors")
def broadcast_tensors(op: Operation, tensors: Sequence[State]) -> list[State]:
    return [op.lift(x, shape).with_(label="") for x, shape in zip(tensors, op.shapes, strict=True)]


def _select_part(op: Operation, x: State, keeps: bool, dim: int) -> State:
    """Part of `x` along `dim`, which goes away unless it `keeps`."""
    dim %= x.ndim
    table = [1 << (i - (not keeps and i > dim)) for i in range(x.ndim)]
    if not keeps:
        table[dim] = 0
    assert op.run is not None
    return op.move(x, op.shape, table, op.run)


@register_rule("aten.select")
def select(op: Operation, self: State, dim: int, index: Any) -> State:
    return _select_part(op, self, False, dim)


@register_rule("aten.slice", "aten.narrow", "aten.flip", "aten.fliplr", "aten.flipud")
def slice_(op: Operation, self: State, *_: Any, **__: Any) -> State:
    assert op.run is not None
    return op.move(self, op.shape, [1 << i for i in range(self.ndim)], op.run)


@register_rule("aten.tril", "aten.triu")
def triangle(op: Operation, self: State, diagonal: int = 0) -> State:
    x = op.pick_part(self).with_(shift=self.shift, sure=self.sure_of_parts)
    return x.plain().extend_shifts(3 << (x.ndim - 2)).with_(varies=x.varies | st.nontrivial(x.shape))


@register_rule(
    *aten(
        "repeat tile repeat_interleave unfold im2col pixel_shuffle pixel_unshuffle channel_shuffle diagonal diag_embed "
        "rot90 roll view_as_complex view_as_real real imag"
    )
)
def rearrange(op: Operation, self: State, *_: Any, **__: Any) -> State:
    """Any other movement of elements: uniform degrees stay, dimensions that matter are followed by moving labels."""
    assert op.run is not None
    full = st.nontrivial(op.shape)
    table = [full] * self.ndim
    if self.shifted.any() or self.broken.any():
        table = follow_dims(self.shape, op.run) or table
    out = op.move(self, op.shape, table, op.run)
    # These put zeros in, so that what was the same everywhere is so no longer.
    return out.extend_shifts(full).with_(varies=full) if op.short in ("diag_embed", "im2col") else out


@register_rule("aten.split", "aten.split_with_sizes", "aten.chunk", "aten.tensor_split", "aten.unbind", "aten.hsplit")
def split(op: Operation, self: State, *args: Any, **kwargs: Any) -> list[State]:
    unbind = op.short == "unbind"
    dim = (args[0] if args else kwargs.get("dim", 0)) % self.ndim if unbind else -1
    table = [1 << (i - (unbind and i > dim)) if i != dim else 0 for i in range(self.ndim)]
    assert op.run is not None
    run = op.run

    def part(k: int) -> Callable[[Any], Any]:
        return lambda labels: run(labels)[k]

    return [op.move(self, shape, table, part(k)) for k, shape in enumerate(op.shapes)]


def concatenate(op: Operation, tensors: Sequence[State], dim: int) -> State:
    """Channels side by side: each keeps its degree."""
    tensors = [x for x in tensors if math.prod(x.shape)] or tensors[:1]
    if len(tensors) == 1:  # beside an empty one, such as a cache before its first token
        return tensors[0].plain()
    ndim = len(op.shape)
    dim %= ndim
    parts = [op.flatten_runs(x) if x.runs > 1 and x.dim != dim else x for x in tensors]
    sizes: list[int] = []
    for x in parts:
        sizes += x.sizes if x.runs > 1 else (x.shape[dim],)
    shift, why, ray, varies = parts[0].shift, parts[0].shift_reason, parts[0].ray, 0
    sure, alike = parts[0].sure, np.ones_like(parts[0].shifted)
    any_sure, every = np.zeros_like(alike), np.ones_like(alike)
    common = np.ones_like(parts[0].shifted)  # rows in which all parts are broken, perhaps by one factor, or zero
    for x in parts:
        shift, why, ray = shift | x.shift, st.worse(why, x.shift_reason), ray | x.ray
        varies |= x.varies
        common &= x.broken | x.vanishing
        sure, alike = sure | x.sure, alike & (x.sure == parts[0].sure)
        any_sure, every = any_sure | (x.sure != 0), every & x.shifted
    along = 1 << dim
    # Shifts of all parts may be one; what only some have varies from one part to the next.
    sure = np.where(alike, sure, sure & st.EVERY_DIM | np.where(any_sure & ~every, along, 0))
    return st.merge_runs(
        parts[0]
        .plain()
        .with_(
            shape=op.shape,
            degree=np.concatenate([x.degree for x in parts], axis=1),
            reason=np.concatenate([x.reason for x in parts], axis=1),
            shift=np.where(shift != 0, shift | along, 0),
            sure=sure,
            shift_reason=why,
            ray=np.where(common, ray, ray | along),
            varies=varies | along,
            dim=dim,
            sizes=tuple(sizes),
            nonneg=all(x.nonneg for x in parts),
            floating=op.floating,
            pending=st.join_pending(*parts),
        )
    )


@register_rule("aten.cat", "aten.concat", "aten.concatenate")
def cat(op: Operation, tensors: Sequence[State], dim: int = 0) -> State:
    return concatenate(op, tensors, dim)


@register_rule("aten.stack")
def stack(op: Operation, tensors: Sequence[State], dim: int = 0) -> State:
    dim %= len(op.shape)
    shape = (*op.shape[:dim], 1, *op.shape[dim + 1 :])
    return concatenate(op, [reshape_to(op, x, shape) for x in tensors], dim)


@register_rule("aten.hstack", "aten.vstack", "aten.dstack")
def stack_named(op: Operation, tensors: Sequence[State]) -> State:
    minimum, dim = {"hstack": (1, 1), "vstack": (2, 0), "dstack": (3, 2)}[op.short]
    wide = [x if x.ndim >= minimum else reshape_to(op, x, (1,) * (minimum - x.ndim) + x.shape) for x in tensors]
    return concatenate(op, wide, 0 if wide[0].ndim == 1 else dim) if op.short != "dstack" else op.unknown(*tensors)


@register_rule("aten.pad", "aten.constant_pad_nd")
def pad(op: Operation, self: State, pad: Sequence[int], mode: str = "constant", value: Any = None) -> State:
    """Zeros around the tensor do not count, another constant must have its degree, reflection repeats it."""
    if op.short == "constant_pad_nd":
        mode, value = "constant", mode
    padded = 0
    for i in range(len(pad) // 2):
        if pad[2 * i] or pad[2 * i + 1]:
            padded |= 1 << (self.ndim - 1 - i)
    filling = op.state(0.0 if value is None or isinstance(value, str) else value)
    full = self.varies | padded
    if self.runs > 1 and padded >> self.dim & 1:
        self = op.flatten_runs(self)
    x = self.plain().with_(shape=op.shape, varies=full & st.nontrivial(op.shape))
    if mode != "constant":
        return x.with_(shift=np.where((x.shift & padded) != 0, x.shift | padded, x.shift), sure=x.sure)
    x = x.extend_shifts(padded).with_(nonneg=x.nonneg and filling.nonneg)
    return x if filling.is_zero else op.choice(x, filling, "pads")


def _index_by(
    op: Operation, x: State, indices: Sequence[Any], table: Sequence[int] | None = None, dim: int | None = None
) -> State:
    """Elements of `x` picked by index tensors, which must not change with the scale.

    A factor that varies along dimension i of `x` varies along dimensions `table[i]` afterwards, which is all of them
    where that is None; `dim` is where the tracked dimension is, where that is known.
    """
    full = st.nontrivial(op.shape)
    x = op.pick_part(x)
    out = (op.flatten_runs(x) if dim is None or x.runs == 1 else x.with_(dim=dim, shift=x.shift, sure=x.sure)).plain()
    out = out.with_(
        shape=op.shape,
        shift=np.where(out.shifted, out.shift | full, 0),
        sure=out.sure & st.HAS_SHIFT,
        ray=np.where(out.broken, st.spread(out.ray, table or [full] * x.ndim) & full, 0),
        varies=full,
        floating=op.floating,
    )
    return op.condition(out, *(index for index in indices if isinstance(index, State)))


@register_rule("aten.index", "aten._unsafe_index")
def index(op: Operation, self: State, indices: Sequence[Any]) -> State:
    # Picked by one tensor of numbers: the dimensions before and after the one it indexes stay beside its own.
    given = [(i, index) for i, index in enumerate(indices) if isinstance(index, State)]
    if len(given) != 1:
        return _index_by(op, self, indices)
    at, picks = given[0]
    if (*self.shape[:at], *picks.shape, *self.shape[at + 1 :]) != op.shape:
        return _index_by(op, self, indices)
    place = [i if i < at else i - 1 + picks.ndim for i in range(self.ndim)]
    table = [1 << i for i in place]
    table[at] = st.mask_of(range(at, at + picks.ndim), len(op.shape))
    return _index_by(op, self, indices, table, place[self.dim] if self.runs > 1 and self.dim != at else None)


@register_rule("aten.index_select", "aten.gather", "aten.take_along_dim")
def gather(op: Operation, self: State, dim: Any, index: Any = None, **_: Any) -> State:
    table = None
    if isinstance(dim, int) and self.ndim == len(op.shape) > 0:
        table = [1 << i for i in range(self.ndim)]
        # Which element along `dim` is picked may hang on where it goes to.
        table[dim % self.ndim] = 1 << dim % self.ndim if op.short == "index_select" else st.nontrivial(op.shape)
    return _index_by(op, self, [dim, index], table)


@register_rule("aten.take", "aten.masked_select")
def take(op: Operation, self: State, index: State) -> State:
    return _index_by(op, self, [index])


@register_rule("aten.embedding")
def embedding(op: Operation, weight: State, indices: State, *_: Any, **__: Any) -> State:
    """Rows of the table: the degree of the weight."""
    if weight.runs > 1 and weight.dim == 1:
        last = weight.with_(shape=op.shape, dim=len(op.shape) - 1)
        return last.plain().with_(
            shift=np.where(last.shifted, st.HAS_SHIFT | st.EVERY_DIM, 0), varies=st.nontrivial(op.shape)
        )
    return _index_by(op, weight, [indices]).with_(label="")


def _write_into(op: Operation, x: State, source: Any, indices: Sequence[Any] = ()) -> State:
    """`x` with elements replaced by, or added from, `source`: the degrees must be equal."""
    value = op.scalar(op.state(source))
    out = op.choice(x, value, "is written into")
    out = op.condition(out, *(index for index in indices if isinstance(index, State)))
    return out.with_(nonneg=x.nonneg and value.nonneg)


@register_rule("aten.index_put", "aten._index_put_impl", "aten._unsafe_index_put")
def index_put(
    op: Operation, self: State, indices: Sequence[Any], values: Any, accumulate: bool = False, *_: Any
) -> State:
    return _write_into(op, self, values, indices)


@register_rule(
    "aten.scatter", "aten.scatter_add", "aten.index_add", "aten.index_copy", "aten.index_fill", "aten.scatter_reduce"
)
def scatter(op: Operation, self: State, dim: int, index: Any, src: Any = None, *args: Any, **kwargs: Any) -> State:
    how = kwargs.get("reduce", args[0] if args else "sum")
    if how in ("prod", "multiply"):
        return op.unknown(self, *(x for x in (index, src) if isinstance(x, State)))
    return _write_into(op, self, kwargs.get("value", kwargs.get("source", src)), [index])


@register_rule("aten.masked_scatter")
def masked_scatter(op: Operation, self: State, mask: State, source: State) -> State:
    return _write_into(op, self, source, [mask])


@register_rule("aten.slice_scatter", "aten.select_scatter")
def slice_scatter(op: Operation, self: State, src: State, *_: Any, **__: Any) -> State:
    return _write_into(op, self, src)


@register_rule("aten.copy", "aten.fill")
def copy(op: Operation, self: State, src: Any, *_: Any) -> State:
    source = op.lift(op.state(src), self.shape).plain()
    return source.with_(floating=self.floating, nonneg=source.nonneg)
