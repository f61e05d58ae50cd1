"""Rules for functions of each element, and of two tensors element by element."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from isogon.symmetry import _state as st
from isogon.symmetry._degree import TOLERANCE
from isogon.symmetry._operation import Operation
from isogon.symmetry._state import State, factor_dims
from isogon.symmetry.rules._registry import aten, register_rule

MASKING = -1e4  # a constant at or below this before a softmax is a mask

_NEED_ZERO = aten(
    "sin cos tan asin acos atan erf erfc erfinv gelu softshrink hardshrink softsign hardswish floor "
    "ceil round trunc frac lgamma digamma i0 sinc"
)
_NEED_ZERO_NONNEG = aten("hardsigmoid relu6")
_EXPONENTIALS = aten("tanh tanhshrink sinh cosh expm1 silu mish elu selu celu log_sigmoid")
_EXPONENTIALS_NONNEG = aten("sigmoid special_expit softplus")
_SIGN_ONLY = aten("sign sgn signbit isnan isinf isfinite logical_not bitwise_not")


# A denominator that may have either sign is near zero now and then: there only a tinier constant is an ε.
_LARGEST_EPS_OF_EITHER_SIGN = 1e-6


def _small_counts_as_zero(op: Operation, x: State, value: float | None) -> bool:
    """Whether adding `value` to `x`, or clamping `x` at it, is the ε before a root or a division."""
    if value is None or not op.into_division:
        return False
    largest = op.book.largest_eps if x.nonneg else min(op.book.largest_eps, _LARGEST_EPS_OF_EITHER_SIGN)
    return 0 < value <= largest


def _drop_eps(op: Operation, x: State, value: float) -> State:
    if (np.abs(np.where(np.isfinite(x.degree), x.degree, 0.0)) > TOLERANCE).any() or x.shifted.any():
        op.assume_small(value)
    still = ~x.shifted if not op.rows_are_one else np.full_like(x.shifted, not x.shifted.any())
    return x.plain().with_(degree=np.where(np.isposinf(x.degree) & still[:, None], 0.0, x.degree))


@register_rule("aten.add", "aten.__add__", "aten.__iadd__")
def add(op: Operation, self: Any, other: Any, *, alpha: float = 1) -> State:
    a, b = op.state(self), op.state(other)
    for x, c, factor in ((a, b, 1.0), (b, a, alpha)):
        # a + alpha · b, where one of the two is the ε of the other; alpha scales b, whichever it is.
        small = None if c.value is None else c.value * (alpha if c is b else 1.0)
        if factor > 0 and _small_counts_as_zero(op, x, small):
            return op.lift(_drop_eps(op, x, small or 0.0), op.shape)
    return op.add(a, b, opposed=alpha < 0).with_(nonneg=a.nonneg and b.nonneg and alpha >= 0)


@register_rule("aten.sub", "aten.subtract")
def subtract(op: Operation, self: Any, other: Any, *, alpha: float = 1) -> State:
    a, b = op.state(self), op.state(other)
    if self is other and alpha == 1:
        return op.zeros()
    if alpha == 1 and (variance := _written_out_variance(op, a, b)) is not None:
        return variance
    if alpha == 1:
        a, b = _less_its_mean(a, b)
        b, a = _less_its_mean(b, a)
    return op.add(a, b, "is subtracted from", opposed=alpha > 0).with_(nonneg=False)


def _less_its_mean(x: State, mean: State) -> tuple[State, State]:
    """Both without the shifts that their difference does not have, where the second is a mean of the first.

    That moves with every shift that is constant over the mean's dimensions. Any other is still there if it varies where
    the mean does not, and that of the mean is a part of it; of a mean over windows that is not certain.
    """
    if mean.centre is None or mean.centre[0] is not x:
        return x, mean
    _, over, how = mean.centre
    removed = (x.shift & over) == 0
    if how == "windows":
        return (x.drop_shifts(removed), mean.drop_shifts(removed)) if mean.shape == x.shape else (x, mean)
    reduced = tuple(1 if over >> i & 1 else n for i, n in enumerate(x.shape))
    if tuple(mean.shape) not in (reduced, reduced[x.ndim - mean.ndim :]) or set(reduced[: x.ndim - mean.ndim]) - {1}:
        return x, mean
    stays = np.where((x.sure & over) != 0, x.sure & st.EVERY_DIM, 0)
    return x.with_(shift=np.where(removed, 0, x.shift), sure=stays), mean.drop_shifts(mean.shifted)


def _written_out_variance(op: Operation, a: State, b: State) -> State | None:
    """The variance of y over some dimensions where a = mean(y²) and b = mean(y)²; each alone would keep y's shift."""
    if a.centre is None or b.square_of is None or b.square_of.centre is None or a.shape != b.shape:
        return None
    squares, over, how = a.centre
    values, also_over, also_how = b.square_of.centre
    if squares.square_of is not values or over != also_over or (how, also_how) != ("mean", "mean"):
        return None
    return op.deviation(values, st.dims_in(over), len(a.shape) == values.ndim)


@register_rule("aten.rsub")
def reverse_subtract(op: Operation, self: Any, other: Any, alpha: float = 1) -> State:
    return op.add(other, self, "is subtracted from", opposed=alpha > 0).with_(nonneg=False)


@register_rule("aten.mul", "aten.multiply")
def multiply(op: Operation, self: Any, other: Any) -> State:
    return op.multiply(self, other)


@register_rule("aten.div", "aten.divide", "aten.true_divide")
def divide(op: Operation, self: Any, other: Any, *, rounding_mode: str | None = None) -> State:
    out = op.divide(self, other)
    return out if rounding_mode is None else op.require_zero(out)


@register_rule("aten.floor_divide", "aten.remainder", "aten.fmod")
def floor_divide(op: Operation, self: Any, other: Any) -> State:
    return op.require_zero(op.multiply(op.require_zero(op.state(self)), op.require_zero(op.state(other))))


@register_rule("aten.addcmul")
def add_product(op: Operation, self: State, tensor1: State, tensor2: State, *, value: float = 1) -> State:
    return op.add(self, op.multiply(tensor1, tensor2), opposed=value < 0).with_(nonneg=False)


@register_rule("aten.addcdiv")
def add_quotient(op: Operation, self: State, tensor1: State, tensor2: State, *, value: float = 1) -> State:
    return op.add(self, op.divide(tensor1, tensor2), opposed=value < 0).with_(nonneg=False)


@register_rule("aten.lerp")
def interpolate_linearly(op: Operation, self: State, end: State, weight: Any) -> State:
    weight = op.require_zero(op.state(weight))
    return op.add(op.multiply(self, weight), op.multiply(end, weight)).with_(nonneg=False)


@register_rule("aten.neg", "aten.negative")
def negate(op: Operation, self: State) -> State:
    value = None if self.value is None else -self.value
    return self.plain().with_(nonneg=False, value=value, turned=not self.turned)


@register_rule("aten.pow")
def power(op: Operation, self: Any, exponent: Any) -> State:
    base, exponent = op.state(self), op.state(exponent)
    if exponent.value is not None:
        return op.lift(op.power(base, exponent.value), op.shape)
    exponent = op.doubt_logarithms(op.require_zero(exponent, f"the exponent of {op.place}"))
    if base.fixed.all():
        return op.require_zero(op.multiply(base, exponent))
    return op.unknown(base, exponent, why=f"{op.place} raises {{0}} to a power that is no single number")


@register_rule("aten.square")
def square(op: Operation, self: State) -> State:
    return op.power(self, 2)


@register_rule("aten.sqrt")
def root(op: Operation, self: State) -> State:
    return op.power(self, 0.5).with_(nonneg=True)


@register_rule("aten.rsqrt")
def reciprocal_root(op: Operation, self: State) -> State:
    return op.power(self, -0.5).with_(nonneg=True)


@register_rule("aten.reciprocal")
def reciprocal(op: Operation, self: State) -> State:
    return op.power(self, -1).with_(nonneg=self.nonneg)


@register_rule("aten.relu")
def relu(op: Operation, self: State) -> State:
    return self.plain() if self.nonneg else op.keep(self, nonneg=True)


@register_rule("aten.abs", "aten.absolute")
def absolute(op: Operation, self: State) -> State:
    return op.keep(self, nonneg=True)


@register_rule("aten.leaky_relu", "aten.rrelu", "aten.nan_to_num")
def leaky_relu(op: Operation, self: State, *_: Any, **__: Any) -> State:
    return op.keep(self)


@register_rule("aten.prelu")
def parametric_relu(op: Operation, self: State, weight: State) -> State:
    """max(x, 0) + w · min(x, 0): the two halves must agree, so that a trainable w breaks it."""
    if self.nonneg:
        return self
    shape = (1, weight.shape[0], *(1,) * (self.ndim - 2)) if weight.ndim == 1 and self.ndim > 1 else weight.shape
    slope = op.move(weight, shape, [st.nontrivial(shape)], lambda labels: labels.view(shape))
    return op.join(op.multiply(op.settle(self), slope), self, "(the negative side of the PReLU) stands beside")


def _is_beyond(bound: Any) -> bool:
    """Whether a bound is so far out that nothing reaches it: the least or the largest number of a type."""
    value = bound.value if isinstance(bound, State) else bound
    return isinstance(value, int | float) and abs(value) >= st.INFINITE


@register_rule("aten.clamp", "aten.clip", "aten.hardtanh")
def clamp(op: Operation, self: State, min: Any = None, max: Any = None, **_: Any) -> State:
    if op.short == "hardtanh":
        min, max = (-1.0 if min is None else min), (1.0 if max is None else max)
    low, high = (None if bound is None or _is_beyond(bound) else op.state(bound) for bound in (min, max))
    if low is not None and high is None and _small_counts_as_zero(op, self, low.value):
        return _drop_eps(op, self, low.value or 0.0)
    out = self
    for bound in (low, high):
        if bound is not None:
            out = op.join(out, bound, f"bounds in {op.place}")
    nonneg = (self.nonneg or (low is not None and low.nonneg)) and (high is None or high.nonneg)
    return out.with_(nonneg=nonneg)


@register_rule("aten.clamp_min")
def clamp_min(op: Operation, self: State, min: Any) -> State:
    return clamp(op, self, min)


@register_rule("aten.clamp_max")
def clamp_max(op: Operation, self: State, max: Any) -> State:
    return clamp(op, self, None, max)


@register_rule("aten.threshold")
def threshold(op: Operation, self: State, threshold: float, value: float) -> State:
    return op.join(op.join(self, threshold, "is the threshold of"), value, "replaces elements of")


@register_rule("aten.maximum", "aten.minimum", "aten.fmax", "aten.fmin", "aten.max.other", "aten.min.other")
def larger(op: Operation, self: State, other: State) -> State:
    for x, c in ((self, other), (other, self)):
        if _is_beyond(c) and ((c.value or 0) < 0) == (op.short in ("maximum", "fmax", "max")):
            return op.lift(x.plain(), op.shape)
        if op.short in ("maximum", "fmax", "max") and _small_counts_as_zero(op, x, c.value):
            return op.lift(_drop_eps(op, x, c.value or 0.0), op.shape)
    return op.join(self, other, "is compared with").with_(nonneg=self.nonneg and other.nonneg)


@register_rule(*aten("gt ge lt le eq ne isclose greater less"))
def compare(op: Operation, self: Any, other: Any, **_: Any) -> State:
    return op.sign(op.join(self, other, "is compared with"))


@register_rule("aten.logical_and", "aten.logical_or", "aten.logical_xor")
def combine_logically(op: Operation, self: State, other: State) -> State:
    return op.require_zero(op.multiply(op.sign(self), op.sign(other)))


@register_rule(*aten("bitwise_and bitwise_or bitwise_xor __and__ __or__ __xor__"))
def combine_bits(op: Operation, self: Any, other: Any) -> State:
    return op.require_zero(op.multiply(op.require_zero(op.state(self)), op.require_zero(op.state(other))))


@register_rule("aten.atan2", "aten.arctan2")
def angle(op: Operation, self: State, other: State) -> State:
    return op.sign(op.join(self, other, "is set against"))


@register_rule("aten.where")
def choose(op: Operation, condition: State, self: Any = None, other: Any = None) -> State:
    if self is None:
        return op.unknown(condition)
    if op.into_softmax and _masks(self) ^ _masks(other):
        kept, filling = (other, self) if _masks(self) else (self, other)
        number = filling.value if isinstance(filling, State) else filling
        scores = op.state(kept)
        out = op.lift(op.condition(op.pick_part(scores.plain()), condition), op.shape)
        hidden = condition.facts.numbers if number is not None and number <= -st.INFINITE else None
        if hidden is not None and kept is self:
            hidden = ~hidden.bool()
        numbers = None if hidden is None else torch.where(hidden.bool(), -torch.inf, 0.0)
        pattern = st.pattern_beside(scores, op.zeros(()).with_(value=None, numbers=numbers))
        return op.behind_mask(out, hidden, op.lift(condition, op.shape).varies).with_(nonneg=False, pattern=pattern)
    a, b = op.state(self), op.state(other)
    out = op.lift(op.condition(op.choice(a, b, "is chosen beside"), condition), op.shape)
    # Which is chosen does not change, so that the choice is linear: a norm may yet take such a shift away.
    linear = (a.shifted | b.shifted) & ~(a.broken | b.broken) & condition.fixed & ~condition.shifted
    out = out.with_(reason=op.in_doubt(out, linear, f"{op.place} gives a shift to a part of {{0}}"))
    # Each element is one of the two, so that what it is multiplied by varies as the condition and the two do; zeros
    # are zeros whatever they are multiplied by.
    a, b, mask = (op.lift(x, op.shape) for x in (a, b, condition))
    along = np.where(a.vanishing | b.vanishing, 0, mask.varies)
    ray = np.where(out.broken & ~mask.broken, along | factor_dims(a) | factor_dims(b), out.ray)
    return out.with_(nonneg=a.nonneg and b.nonneg, ray=ray, varies=out.varies | mask.varies)


def _masks(x: Any) -> bool:
    value = x.value if isinstance(x, State) else x
    return value is not None and value <= MASKING


@register_rule("aten.masked_fill")
def masked_fill(op: Operation, self: State, mask: State, value: Any) -> State:
    filling = op.state(value)
    if filling.value is not None and (filling.value <= -st.INFINITE or (_masks(filling) and op.into_softmax)):
        out = op.lift(op.condition(op.pick_part(self.plain()), mask), op.shape)
        along = op.lift(mask, op.shape).varies
        hidden = mask.facts.numbers if filling.value <= -st.INFINITE else None
        return op.behind_mask(out, hidden, along).with_(nonneg=False)
    return choose(op, mask, filling, self)


@register_rule("aten.log", "aten.log2", "aten.log10")
def logarithm(op: Operation, self: State) -> State:
    return op.logarithm(self)


@register_rule(*aten("log1p logit asinh acosh atanh"))
def logarithm_of_sum(op: Operation, self: State, *_: Any, **__: Any) -> State:
    return op.mark_logarithm(op.require_zero(self), self)


@register_rule("aten.glu")
def gated_linear_unit(op: Operation, self: State, dim: int = -1) -> State:
    """a · sigmoid(b) for the two halves of x along `dim`."""
    half = self.shape[dim] // 2
    table = [1 << i for i in range(self.ndim)]
    a = op.move(self, op.shape, table, lambda labels: labels.narrow(dim, 0, half))
    b = op.move(self, op.shape, table, lambda labels: labels.narrow(dim, half, half))
    return op.multiply(a, op.doubt_logarithms(op.require_zero(b, f"the gate of {op.place}")))


@register_rule(*_NEED_ZERO)
def needs_zero(op: Operation, self: State, *_: Any, **__: Any) -> State:
    return op.require_zero(self)


@register_rule(*_NEED_ZERO_NONNEG)
def needs_zero_nonneg(op: Operation, self: State, *_: Any, **__: Any) -> State:
    return op.require_zero(self, nonneg=True)


@register_rule(*_EXPONENTIALS)
def exponential(op: Operation, self: State, *_: Any, **__: Any) -> State:
    return op.doubt_logarithms(op.require_zero(self))


@register_rule("aten.exp", "aten.exp2")
def power_of_e(op: Operation, self: State) -> State:
    """exp(A + B(c)) = exp(A) · exp(B(c)): a shift becomes a factor, which a division may take out again."""
    becomes_factor = self.shifted & (np.abs(self.degree) <= TOLERANCE).all(axis=1)
    out = exponential_nonneg(op, self)
    return out.with_(ray=np.where(becomes_factor, self.shift & st.EVERY_DIM, out.ray), shift=out.shift, sure=out.sure)


@register_rule(*_EXPONENTIALS_NONNEG)
def exponential_nonneg(op: Operation, self: State, *_: Any, **__: Any) -> State:
    return op.doubt_logarithms(op.require_zero(self, nonneg=True))


@register_rule(*_SIGN_ONLY)
def needs_sign(op: Operation, self: State) -> State:
    return op.sign(self)
