"""Rules for normalisations, and for the weight parametrisations built of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from isogon.symmetry._operation import Operation
from isogon.symmetry._state import State
from isogon.symmetry.rules._pointwise import subtract
from isogon.symmetry.rules._registry import register_rule
from isogon.symmetry.rules._shape import reshape_to


def _affine(op: Operation, x: State, weight: State | None, bias: State | None, dims: Sequence[int]) -> State:
    """x · γ + β, where γ and β lie along `dims`."""
    shape = tuple(n if i in dims else 1 for i, n in enumerate(x.shape))
    table = [1 << d if x.shape[d] != 1 else 0 for d in dims]
    for parameter, apply in ((weight, op.multiply), (bias, op.add)):
        if parameter is not None:
            placed = op.move(parameter, shape, table, lambda labels: labels.view(shape))
            x = apply(x, placed.with_(label=parameter.label, free=parameter.free))
    return x.with_(nonneg=False)


def _note_pairs(op: Operation, x: State, dims: Sequence[int], groups: int = 1) -> None:
    """Two values normalised together give ±1 whatever they are: say so, the answer then rests on a corner case."""
    count = int(np.prod([x.shape[d] for d in dims])) // groups
    if count == 2:
        op.note(f"{op.place} normalises only 2 values at a time, which gives ±1 whatever they are: use a larger input.")


def _given_statistics(
    op: Operation,
    x: State,
    weight: State | None,
    bias: State | None,
    mean: State | None,
    variance: State | None,
    eps: float,
    why: str,
) -> State:
    """(x − mean) / √variance with statistics that are given: buffers, as in eval mode, or computed by the model."""
    if mean is None or variance is None:
        return op.unknown(x, why=f"{op.place} has no statistics")
    shape = (1, x.shape[1], *(1,) * (x.ndim - 2))
    if mean.fixed.all() and variance.fixed.all():
        # Buffers are what training left, so that a mean of zero in a fresh model is no constant to rely on.
        label = f"{op.module}.running_mean" if op.module else "running_mean"
        moved = op.add(x, op.constant(shape, label=label, free=True))
        if not x.fixed.all():
            number = op.broken(
                "eval",
                f"{op.place} uses its running statistics because {why}, so that it is an affine map with constants: "
                "a fixed mean is subtracted from {0}",
                x,
                cure="call model.train(), or train() on that module",
            )
            op.book.running.append(number)
            moved = moved.with_(shift_reason=np.where(moved.shifted, number, moved.shift_reason))
    else:
        op.assume_small(eps)
        deviation = op.power(reshape_to(op, variance, shape), 0.5).with_(nonneg=True)
        moved = op.divide(subtract(op, x, reshape_to(op, mean, shape)), deviation)
    return _affine(op, moved, weight, bias, [1])


@register_rule("aten.batch_norm")
def batch_norm(
    op: Operation,
    input: State,
    weight: State | None,
    bias: State | None,
    running_mean: State | None,
    running_var: State | None,
    training: bool,
    momentum: float,
    eps: float,
    *_: Any,
) -> State:
    if not training:
        return _given_statistics(op, input, weight, bias, running_mean, running_var, eps, "the module is in eval mode")
    if running_mean is not None:
        op.book.averaged[op.module] = input
    return _per_channel(op, input, [d for d in range(input.ndim) if d != 1], weight, bias, eps)


@register_rule("aten.instance_norm")
def instance_norm(
    op: Operation,
    input: State,
    weight: State | None,
    bias: State | None,
    running_mean: State | None,
    running_var: State | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    *_: Any,
) -> State:
    if not use_input_stats:
        why = "the module is in eval mode and tracks them"
        return _given_statistics(op, input, weight, bias, running_mean, running_var, eps, why)
    return _per_channel(op, input, list(range(2, input.ndim)), weight, bias, eps)


def _per_channel(
    op: Operation, input: State, over: list[int], weight: State | None, bias: State | None, eps: float
) -> State:
    op.assume_small(eps)
    _note_pairs(op, input, over)
    return _affine(op, op.normalise(input, over), weight, bias, [1])


@register_rule("aten.layer_norm")
def layer_norm(
    op: Operation,
    input: State,
    normalized_shape: Sequence[int],
    weight: State | None = None,
    bias: State | None = None,
    eps: float = 1e-5,
    *_: Any,
) -> State:
    over = list(range(input.ndim - len(normalized_shape), input.ndim))
    op.assume_small(eps)
    _note_pairs(op, input, over)
    return _affine(op, op.normalise(input, over), weight, bias, over)


@register_rule("aten.rms_norm")
def rms_norm(
    op: Operation, input: State, normalized_shape: Sequence[int], weight: State | None = None, eps: float | None = None
) -> State:
    over = list(range(input.ndim - len(normalized_shape), input.ndim))
    op.assume_small(2**-23 if eps is None else eps)
    return _affine(op, op.normalise(input, over, centred=False), weight, None, over)


@register_rule("aten.group_norm")
def group_norm(
    op: Operation,
    input: State,
    num_groups: int,
    weight: State | None = None,
    bias: State | None = None,
    eps: float = 1e-5,
    *_: Any,
) -> State:
    """Each group of channels is normalised together, so that degrees must agree within it."""
    channels = input.shape[1]
    op.assume_small(eps)
    _note_pairs(op, input, range(1, input.ndim), num_groups)
    over = list(range(2 if num_groups == channels else 1, input.ndim))
    groups = 1 if num_groups == channels else num_groups
    return _affine(op, op.normalise(input, over, groups=groups), weight, bias, [1])


@register_rule("aten._weight_norm")
def weight_norm(op: Operation, v: State, g: State, dim: int = 0) -> State:
    """w = g · v / ‖v‖, one norm per index of `dim` (of all where −1)."""
    over = [d for d in range(v.ndim) if dim == -1 or d != dim % v.ndim]
    return op.multiply(op.normalise(v, over, centred=False), g)


@register_rule("aten._weight_norm_interface")
def weight_norm_interface(op: Operation, v: State, g: State, dim: int = 0) -> list[State]:
    over = [d for d in range(v.ndim) if dim == -1 or d != dim % v.ndim]
    size = op.reduce(op.settle(v), over, True).plain().with_(nonneg=True)
    return [weight_norm(op, v, g, dim), op.lift(size, op.shapes[1])]
