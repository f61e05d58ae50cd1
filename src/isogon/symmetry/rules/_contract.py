"""Rules for linear maps and products of tensors that sum over an index: (d₁, d₂) → d₁ + d₂."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from isogon.symmetry import _state as st
from isogon.symmetry._operation import Operation
from isogon.symmetry._state import Ints, State
from isogon.symmetry.rules._reduce import softmax_over
from isogon.symmetry.rules._registry import register_rule

Labels = Sequence[Hashable]


def _relabel(masks: Ints, labels: Labels, out: Labels) -> Ints:
    """Masks over the dimensions called `labels` as masks over those called `out`; what is summed over drops out."""
    return st.spread(masks, [1 << list(out).index(label) if label in out else 0 for label in labels])


def contract(
    op: Operation, a: State, la: Labels, b: State, lb: Labels, out: Labels, shape: Sequence[int], blurred: Labels = ()
) -> State:
    """Σ a·b over the labels that `out` lacks, as in einsum. `blurred` labels stay but mix neighbours (convolution)."""
    if a.runs > 1 and b.runs > 1 and la[a.dim] != lb[b.dim]:
        a = a if la[a.dim] in out else op.mix(a)
        b = b if lb[b.dim] in out else op.mix(b)
        b = op.flatten_runs(b) if a.runs > 1 else b
    a, b = op.apply_weights(a, b), op.apply_weights(b, a)
    a, b = op.settle_both(a, b)
    da, ra, db, rb, _, sizes = st.common_runs(a, b, 0, 0)
    tracked = la[a.dim] if a.runs > 1 else lb[b.dim] if b.runs > 1 else None
    zero = np.isposinf(da) | np.isposinf(db)
    with np.errstate(invalid="ignore"):
        degree = np.where(zero, np.inf, da + db)
    full_a, full_b = (_relabel(np.asarray(x.varies), labels, out) for x, labels in ((a, la), (b, lb)))
    varies = int((full_a | full_b) & st.nontrivial(shape))
    (shift_a, sure_a), (shift_b, sure_b) = _shift(a, la, b, lb, out, full_b), _shift(b, lb, a, la, out, full_a)
    none = a.vanishing | b.vanishing
    ray_a, ray_b = np.where(a.broken, a.ray, 0), np.where(b.broken, b.ray, 0)
    summed_a = st.mask_of([i for i, x in enumerate(la) if x not in out or x in blurred], len(la))
    summed_b = st.mask_of([i for i, x in enumerate(lb) if x not in out or x in blurred], len(lb))
    ray = np.where(
        ((ray_a & summed_a) | (ray_b & summed_b)) != 0, varies, _relabel(ray_a, la, out) | _relabel(ray_b, lb, out)
    )
    result = op.constant(shape, varies=varies).with_(
        degree=degree,
        reason=np.where(np.isnan(degree), st.worse(ra, rb), st.NO_REASON),
        shift=np.where(none, 0, shift_a | shift_b),
        sure=np.where(none, 0, sure_a | sure_b) & (st.nontrivial(shape) | st.HAS_SHIFT),
        shift_reason=st.worse(a.shift_reason, b.shift_reason),
        ray=ray,
        sizes=sizes,
        nonneg=a.nonneg and b.nonneg,
        floating=op.floating,
        pending=st.without_owners(st.join_pending(a, b)),
    )
    if tracked is None:
        return result
    if tracked not in out:
        return op.mix(result)
    return st.merge_runs(
        result.with_(
            dim=list(out).index(tracked), ray=result.ray | np.where(result.uneven, 1 << list(out).index(tracked), 0)
        )
    )


def _shift(x: State, lx: Labels, by: State, lb: Labels, out: Labels, varies: Ints) -> tuple[Ints, Ints]:
    """The shift of `x` after it is multiplied by `by`, as which it may vary, and summed; and what is sure of it.

    Weights that sum to 1 over the summed index leave a shift that is constant along that index as it is. Those that no
    parameter changes may have been made to remove it, as differences of neighbours do.
    """
    summed = [label for label in lb if label not in out]
    unchanged = np.zeros_like(x.shifted)
    if by.stochastic and summed == [lb[by.stochastic.bit_length() - 1]] and summed[0] in lx:
        unchanged = (x.shift >> list(lx).index(summed[0]) & 1) == 0
    moved, sure = _relabel(x.shift, lx, out), _relabel(x.sure, lx, out)
    shift = np.where(x.shifted, np.where(unchanged, moved, moved | varies), 0)
    if by.free or not by.fixed.all():
        return shift, np.where(unchanged | (sure == 0), sure, sure | varies)
    return shift, np.where(unchanged, sure, 0)


def _with_bias(op: Operation, x: State, bias: State | None, dim: int) -> State:
    """x + b with one b per channel of dimension `dim`."""
    if bias is None:
        return x
    shape = tuple(n if i == dim % x.ndim else 1 for i, n in enumerate(x.shape))
    placed = op.move(bias, shape, [st.nontrivial(shape)], lambda labels: labels.view(shape))
    return op.add(x, placed.with_(label=bias.label, free=bias.free)).with_(nonneg=False)


@register_rule("aten.linear")
def linear(op: Operation, input: State, weight: State, bias: State | None = None) -> State:
    batch = list(range(input.ndim - 1))
    if weight.ndim == 1:
        return _with_bias(op, contract(op, input, [*batch, "i"], weight, ["i"], batch, op.shape), None, -1)
    out = contract(op, input, [*batch, "i"], weight, ["o", "i"], [*batch, "o"], op.shape)
    return _with_bias(op, out, bias, -1)


def _matrix_product(op: Operation, a: State, b: State, shape: Sequence[int]) -> State:
    """a @ b with the rules of torch.matmul for vectors and for broadcast dimensions, labelled from the right."""
    la: list[Hashable] = [("batch", a.ndim - i) for i in range(a.ndim - 2)] + (["n", "k"] if a.ndim > 1 else ["k"])
    lb: list[Hashable] = [("batch", b.ndim - i) for i in range(b.ndim - 2)] + (["k", "m"] if b.ndim > 1 else ["k"])
    longer = la if a.ndim >= b.ndim else lb
    out = [x for x in longer if isinstance(x, tuple)] + ["n"] * (a.ndim > 1) + ["m"] * (b.ndim > 1)
    return contract(op, a, la, b, lb, out, shape)


@register_rule("aten.matmul", "aten.mm", "aten.bmm", "aten.mv", "aten.dot", "aten.vdot", "aten.linalg_matmul")
def matmul(op: Operation, self: State, other: State, *_: Any, **__: Any) -> State:
    return _matrix_product(op, self, other, op.shape)


@register_rule("aten.addmm", "aten.baddbmm", "aten.addmv")
def add_matmul(op: Operation, self: State, mat1: State, mat2: State, *, beta: float = 1, alpha: float = 1) -> State:
    product = _matrix_product(op, mat1, mat2, op.shape)
    return product if beta == 0 else op.add(product, self).with_(nonneg=False)


@register_rule("aten._grouped_mm", "transformers.grouped_mm_fallback")
def grouped_product(op: Operation, self: State, mat2: State, offs: State | None = None, *_: Any, **__: Any) -> State:
    """Rows of x times the matrix of their expert: (S, i) and (e, i, o) give (S, o)."""
    if self.ndim != 2 or mat2.ndim != 3:
        return op.unknown(self, mat2)
    out = contract(op, self, ["s", "i"], mat2, ["e", "i", "o"], ["s", "o"], op.shape)
    # Which matrix a row meets depends on the row, and so does what becomes of a shift.
    out = out.extend_shifts(1).with_(varies=st.nontrivial(op.shape))
    return out if offs is None else op.condition(out, offs)


@register_rule("aten.outer", "aten.ger")
def outer(op: Operation, self: State, vec2: State) -> State:
    return contract(op, self, ["n"], vec2, ["m"], ["n", "m"], op.shape)


@register_rule("aten.inner")
def inner(op: Operation, self: State, other: State) -> State:
    if not self.ndim or not other.ndim:
        return op.multiply(self, other)
    left, right = [("a", i) for i in range(self.ndim - 1)], [("b", i) for i in range(other.ndim - 1)]
    return contract(op, self, [*left, "k"], other, [*right, "k"], [*left, *right], op.shape)


@register_rule("aten.tensordot")
def tensordot(op: Operation, self: State, other: State, dims_self: Sequence[int], dims_other: Sequence[int]) -> State:
    la: list[Hashable] = [("a", i) for i in range(self.ndim)]
    lb: list[Hashable] = [("b", i) for i in range(other.ndim)]
    for i, j in zip(dims_self, dims_other, strict=True):
        lb[j % other.ndim] = la[i % self.ndim]
    out = [x for x in la if x not in lb] + [x for x in lb if x not in la]
    return contract(op, self, la, other, lb, out, op.shape)


@register_rule("aten.bilinear")
def bilinear(op: Operation, input1: State, input2: State, weight: State, bias: State | None = None) -> State:
    batch = list(range(input1.ndim - 1))
    shape = (*op.shape, input2.shape[-1])
    half = contract(op, input1, [*batch, "i"], weight, ["o", "i", "j"], [*batch, "o", "j"], shape)
    out = contract(op, half, [*batch, "o", "j"], input2, [*batch, "j"], [*batch, "o"], op.shape)
    return _with_bias(op, out, bias, -1)


@register_rule("aten.einsum")
def einsum(op: Operation, equation: str, tensors: Sequence[State], **_: Any) -> State:
    """Products of all tensors, two at a time, each keeping the letters that are still needed."""
    equation = equation.replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    widest = max((x.ndim - len(t.replace("...", "")) for t, x in zip(terms, tensors, strict=True)), default=0)
    labels: list[list[Hashable]] = []
    for term, x in zip(terms, tensors, strict=True):
        head, dots, tail = term.partition("...")
        free = x.ndim - len(head) - len(tail) if dots else 0
        labels.append([*head, *(("free", widest - free + i) for i in range(free)), *tail])
    free_labels: list[Hashable] = [("free", i) for i in range(widest)] if "..." in left else []
    if arrow:
        head, dots, tail = right.partition("...")
        out: list[Hashable] = [*head, *(free_labels if dots else []), *tail]
    else:
        letters = sorted({c for c in left if c.isalpha() and left.count(c) == 1})
        out = [*free_labels, *letters]
    sizes: dict[Hashable, int] = {}
    for names, x in zip(labels, tensors, strict=True):
        for name, size in zip(names, x.shape, strict=True):
            sizes[name] = max(sizes.get(name, 1), size)
    result, names, start = op.constant((), value=1.0, nonneg=True), [], 0
    needed = {name for rest in labels[1:] for name in rest} | set(out)
    if len(tensors) > 1 and set(labels[0]) <= needed and len(set(labels[0])) == len(labels[0]):
        result, names, start = tensors[0], labels[0], 1  # nothing is summed yet
    for k, (x, letters_of_x) in list(enumerate(zip(tensors, labels, strict=True)))[start:]:
        later = {name for rest in labels[k + 1 :] for name in rest} | set(out)
        last = k == len(tensors) - 1
        remaining = out if last else [n for n in dict.fromkeys([*names, *letters_of_x]) if n in later]
        result = contract(op, result, names, x, letters_of_x, remaining, [sizes[n] for n in remaining])
        names = list(remaining)
    return result


def _grouped(op: Operation, x: State, dim: int, groups: int, channels: int) -> State:
    """Channels mixed within each of `groups`, as `channels` output channels see them."""
    mixed = op.mix(x, "mixes", groups)
    first = np.arange(channels) // (channels // groups) * (x.shape[dim] // groups)  # one input channel for each output
    degree, reason = st.per_channel(mixed, x.shape[dim])
    return st.from_channels(mixed, degree[:, first], reason[:, first], dim)


@register_rule(*(f"aten.conv{n}d" for n in (1, 2, 3)), *(f"aten.conv_transpose{n}d" for n in (1, 2, 3)))
def convolution(
    op: Operation,
    input: State,
    weight: State,
    bias: State | None = None,
    stride: Any = 1,
    padding: Any = 0,
    *more: Any,
    **named: Any,
) -> State:
    """Convolution is linear in input and weight; zeros at the border do not count."""
    turned = "transpose" in op.short
    spatial = weight.ndim - 2
    x, channel = input, input.ndim - spatial - 1
    defaults = [0, 1, 1] if turned else [1, 1]  # output_padding, groups, dilation; dilation, groups
    rest = [*more, *defaults[len(more) :]]
    groups = named.get("groups", rest[1])
    if x.runs > 1 and x.dim > channel:
        x = op.flatten_runs(x)
    if groups > 1 and x.runs > 1 and x.dim == channel:
        x = _grouped(op, x, channel, groups, op.shape[channel])
    batch: list[Hashable] = ["n"] * channel
    places: list[Hashable] = [("s", i) for i in range(spatial)]
    kernel: list[Hashable] = [("k", i) for i in range(spatial)]
    grouped_in: Hashable = "o" if groups > 1 else "c"
    in_out: list[Hashable] = ["c", "o"] if turned else ["o", "c"]
    if groups > 1 and turned and weight.runs > 1:
        weight = op.flatten_runs(weight)
    out = contract(
        op, x, [*batch, grouped_in, *places], weight, [*in_out, *kernel], [*batch, "o", *places], op.shape, places
    )
    if _borders(padding) or turned:
        along = st.mask_of(range(channel + 1, x.ndim), x.ndim)
        # Near the border fewer weights meet the shift; a part that is cut out of the middle does not see that.
        sure = np.where(out.sure != 0, out.sure & st.EVERY_DIM | along & st.nontrivial(op.shape), 0)
        out = out.with_(shift=out.extend_shifts(along).shift, sure=sure)
    return _with_bias(op, out.with_(varies=st.nontrivial(op.shape)), bias, channel)


def _borders(padding: Any) -> bool:
    """Whether zeros are added around the input, so that a constant input gives a result that varies near the border."""
    if isinstance(padding, str):
        return padding != "valid"
    return any(padding) if isinstance(padding, Sequence) else bool(padding)


@register_rule("aten.scaled_dot_product_attention")
def attention(
    op: Operation,
    query: State,
    key: State,
    value: State,
    attn_mask: State | None = None,
    dropout_p: float = 0.0,
    *more: Any,
    **named: Any,
) -> State:
    """softmax(q·kᵀ + mask)·v: the scores need degree 0; a shift that is equal for all keys does not matter."""
    batch: list[Hashable] = [("batch", i) for i in range(query.ndim - 2)]
    if named.get("enable_gqa"):
        query, key, value = op.flatten_runs(query), op.flatten_runs(key), op.flatten_runs(value)
    scores_shape = (*query.shape[:-1], key.shape[-2])
    scores = contract(op, query, [*batch, "l", "e"], key, [*batch, "s", "e"], [*batch, "l", "s"], scores_shape)
    if attn_mask is not None:
        scores = replace(op, into_softmax=True).add(scores, attn_mask) if attn_mask.floating else scores
    weights = softmax_over(op, scores, scores.ndim - 1, f"the softmax of {op.place}")
    if attn_mask is not None and not attn_mask.floating:
        weights = op.condition(weights, attn_mask)
    if attn_mask is not None or dropout_p or named.get("is_causal") or (more and more[0]):
        # A query whose keys are all masked has weights of 0, and every query sees other keys.
        weights = weights.with_(stochastic=0, varies=st.nontrivial(weights.shape))
    return contract(op, weights, [*batch, "l", "s"], value, [*batch, "s", "e"], [*batch, "l", "e"], op.shape)


@register_rule("aten.cosine_similarity")
def cosine_similarity(op: Operation, x1: State, x2: State, dim: int = 1, eps: float = 1e-8) -> State:
    op.assume_small(eps)
    wide = [op.lift(x, np.broadcast_shapes(x1.shape, x2.shape)) for x in (x1, x2)]
    a, b = (op.normalise(x, [dim], centred=False) for x in wide)
    return op.reduce(op.multiply(a, b), [dim], False)


@register_rule("aten.cdist")
def pairwise_distance(op: Operation, x1: State, x2: State, p: float = 2, *_: Any) -> State:
    if st.one_shift(x1, x2).any():
        return op.unknown(x1, x2, why=f"{op.place} compares tensors that may have one shift")
    both = op.join(op.scalar(op.mix(x1)), op.scalar(op.mix(x2)), "is compared with")
    return op.lift(both, op.shape).with_(varies=st.nontrivial(op.shape), nonneg=True)
