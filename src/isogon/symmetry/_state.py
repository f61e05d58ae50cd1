"""What the tracer knows about one tensor, for every source at once.

A source is a set of parameters scaled by one factor c: all trainable ones together, or one alone. For each source (a
row of the arrays) a tensor is written as

    T(c) = g(c) ⊙ A + B(c),

with A fixed. Usually g(c) = c^d; then `degree` holds d, per channel where channels differ: along one dimension `dim`,
as runs of `sizes` channels. Infinity stands for a tensor that is zero at every scale, and NaN for one that is not
homogeneous or unknown, with the number of the reason in `reason`. Two sets of dimensions, as bit masks, do the rest:

- `shift`: B(c) varies along these dimensions at most, so that a normalisation over the others removes it whatever it is
  (a bias before batch norm). Most operations turn a shift into "not homogeneous". `sure` is what is certain of it: the
  dimensions along which it does vary, and the flag `HAS_SHIFT` where that, and that there is a shift at all, holds for
  every part of the tensor. Without certainty, what a shift breaks is unknown.
- `ray`: where `degree` is NaN, T may be g(c) ⊙ A + B(c) with a g that varies along these dimensions at most. A
  normalisation over the others might remove g, so that "not homogeneous" is no longer certain after it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from isogon.symmetry._degree import TOLERANCE

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

NO_REASON = -1
UNKNOWN_BASE = 1 << 40  # numbers of "unknown" reasons start here, those of "not homogeneous" below
HAS_SHIFT = 1 << 61
#: a linear form in the unknown powers: (row, coefficient) of what is not zero
Form = tuple[tuple[int, float], ...]


class Pending(NamedTuple):
    """A form that a shift asks for unless it is removed."""

    form: Form
    row: int  # of `State.shift`, where the dimensions of this shift are
    #: the form of the channels that have the shift, while these are as they were: it goes where they are left out
    owner: Form | None = None


EVERY_DIM = HAS_SHIFT - 1
INFINITE = 1e30  # masks hold the most negative number of their type where they mean -∞


def nontrivial(shape: Sequence[int]) -> int:
    """The mask of the dimensions along which a tensor of this shape can vary at all.

    >>> bin(nontrivial((4, 1, 3)))
    '0b101'
    """
    return sum(1 << i for i, size in enumerate(shape) if size != 1)


def mask_of(dims: Sequence[int], ndim: int) -> int:
    """The mask of the dimensions `dims`, which may be negative."""
    return sum({1 << (d % ndim) for d in dims}) if ndim else 0


def mask_over(dims: Sequence[int] | None, ndim: int) -> int:
    """The mask of the dimensions that a reduction over `dims` takes: all of them where that is None or empty."""
    return mask_of(dims, ndim) if dims else (1 << ndim) - 1


def dims_in(mask: int) -> list[int]:
    return [i for i in range(mask.bit_length()) if mask >> i & 1]


def spread(masks: Ints, table: Sequence[int]) -> Ints:
    """Each mask with every dimension i replaced by the mask `table[i]`; the shift flag stays.

    >>> spread(np.array([0b01, 0b10]), [0b110, 0b1]).tolist()
    [6, 1]
    """
    out = masks & HAS_SHIFT
    for i, target in enumerate(table):
        if target:
            out = out | np.where(masks >> i & 1, target, 0)
    return out


def spread_surely(masks: Ints, table: Sequence[int], shape: Sequence[int]) -> Ints:
    """`spread` for what is certain, in a tensor of this shape.

    What varies in every part of a dimension varies along each of those that it is split into; else that is lost. Where
    others join a dimension, what varies along it no longer does so in every part.

    >>> spread_surely(np.array([0b01, 0b10]), [0b110, 0b1], (2, 2, 2)).tolist()
    [0, 1]
    >>> spread_surely(np.array([0b01 | HAS_SHIFT]), [0b110, 0b1], (2, 2, 2)).item() == 0b110 | HAS_SHIFT
    True
    >>> spread_surely(np.array([0b01 | HAS_SHIFT]), [0b1, 0b1], (4,)).tolist()
    [1]
    """
    single = [target if target.bit_count() == 1 else 0 for target in table]
    spread_out = np.where(masks & HAS_SHIFT, spread(masks, table), spread(masks, single))
    joined = spread(EVERY_DIM & ~masks, table) & spread(masks, table) & nontrivial(shape)
    spread_out = np.where(joined, spread_out & ~HAS_SHIFT, spread_out)
    return spread_out & (nontrivial(shape) | HAS_SHIFT)


def both_sure(a: Ints, b: Ints) -> Ints:
    """What is certain of the sum of two shifts; the flag stays where both have it, or one of them is none."""
    flag = np.where((a == 0) | (b == 0), a | b, a & b) & HAS_SHIFT
    return (a | b) & EVERY_DIM | flag


def worse(a: Ints, b: Ints) -> Ints:
    """The reason to report where two meet: an unknown first, else the earlier one."""
    high, low = np.maximum(a, b), np.minimum(a, b)
    return np.where((high >= UNKNOWN_BASE) | (low < 0), high, low)


def worst(reasons: Ints) -> Ints:
    """`worse` over the last axis."""
    out: Ints = reasons[..., 0]
    for i in range(1, reasons.shape[-1]):
        out = worse(out, reasons[..., i])
    return out


@dataclass(frozen=True, eq=False)
class Facts:
    """What holds of one tensor alone, and of nothing that is computed from it."""

    label: str = ""  # the parameter's or buffer's name, where the tensor is one
    free: bool = False  # it holds what training left; what is frozen may have been made to be equal, or to sum to zero
    value: float | None = None  # the one number it holds everywhere, when that is known
    turned: bool = False  # it is another tensor times a negative number
    # the "mean" or an "extreme" of that tensor over these dimensions, or its means over "windows" of them
    centre: tuple[State, int, str] | None = None
    square_of: State | None = None  # it is the square of that tensor
    stochastic: int = 0  # it sums to 1 along this dimension, given as a mask: attention weights
    #: mean and deviation over the dimensions of the first mask are the same wherever along those of the second
    alike: tuple[int, int] | None = None
    numbers: torch.Tensor | None = None  # the whole numbers it holds, where neither input nor parameter decides them
    pattern: torch.Tensor | None = None  # where its labels differ, its elements are different weights in training
    parts: tuple[int, tuple[State, ...]] | None = None  # it is these, side by side along this dimension


_NO_FACTS = Facts()
_FACTS = frozenset(fact.name for fact in fields(Facts))


@dataclass(frozen=True, eq=False)
class State:
    """One tensor's T(c) = g(c) ⊙ A + B(c), one row per source; see the module's text for the arrays."""

    shape: tuple[int, ...]
    # g(c): the degrees along runs of channels
    degree: Floats  # (sources, runs)
    reason: Ints  # (sources, runs)
    # B(c)
    shift: Ints  # (sources,)
    sure: Ints  # (sources,)
    shift_reason: Ints  # (sources,)
    # what may still be taken out where the degree is NaN
    ray: Ints  # (sources,)
    varies: int  # dimensions along which the tensor varies at most, at any scale
    dim: int = 0
    sizes: tuple[int, ...] = ()
    nonneg: bool = False
    floating: bool = True
    pending: tuple[Pending, ...] = ()  # forms that must vanish where the shift is not removed (see groups/_forms.py)
    facts: Facts = _NO_FACTS

    @property
    def label(self) -> str:
        return self.facts.label

    @property
    def free(self) -> bool:
        return self.facts.free

    @property
    def value(self) -> float | None:
        return self.facts.value

    @property
    def turned(self) -> bool:
        return self.facts.turned

    @property
    def centre(self) -> tuple[State, int, str] | None:
        return self.facts.centre

    @property
    def square_of(self) -> State | None:
        return self.facts.square_of

    @property
    def stochastic(self) -> int:
        return self.facts.stochastic

    @property
    def alike(self) -> tuple[int, int] | None:
        return self.facts.alike

    @property
    def sources(self) -> int:
        return int(self.degree.shape[0])

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def runs(self) -> int:
        return int(self.degree.shape[1])

    @property
    def broken(self) -> Bools:
        """Rows in which some channel is not homogeneous or unknown."""
        return np.asarray(np.isnan(self.degree).any(axis=1))

    @property
    def shifted(self) -> Bools:
        return np.asarray(self.shift != 0)

    @property
    def is_zero(self) -> bool:
        """Whether it is zero (or infinite) everywhere, for every source."""
        return bool(self.vanishing.all())

    @property
    def vanishing(self) -> Bools:
        """Rows in which it is zero everywhere."""
        return np.asarray(np.isposinf(self.degree).all(axis=1) & ~self.shifted)

    @property
    def fixed(self) -> Bools:
        """Rows in which it certainly does not change with the scale."""
        return np.asarray(((np.abs(self.degree) <= TOLERANCE) | np.isposinf(self.degree)).all(axis=1) & ~self.shifted)

    @property
    def uneven(self) -> Bools:
        """Rows whose channels differ in degree; zeros do not count, whose degree is any."""
        finite, nan = np.isfinite(self.degree), np.isnan(self.degree)
        low = np.where(finite, self.degree, np.inf).min(axis=1)
        high = np.where(finite, self.degree, -np.inf).max(axis=1)
        return np.asarray((high > low) | (nan.any(axis=1) & finite.any(axis=1)))

    def with_(self, **changes: Any) -> State:
        """The same with other values; of another `shift` nothing is certain unless `sure` says so."""
        if "shift" in changes:
            changes.setdefault("sure", np.zeros_like(self.sure))
        facts = {name: changes.pop(name) for name in _FACTS & changes.keys()}
        if facts:
            changes["facts"] = replace(self.facts, **facts)
        return replace(self, **changes)

    def drop_shifts(self, rows: Bools) -> State:
        """The same without a shift in these rows."""
        return replace(self, shift=np.where(rows, 0, self.shift), sure=np.where(rows, 0, self.sure))

    def extend_shifts(self, dims: int) -> State:
        """The same with shifts that may vary along these dimensions, too."""
        return replace(self, shift=np.where(self.shifted, self.shift | dims, 0))

    @property
    def sure_of_parts(self) -> Ints:
        """What is certain of the shift of a part of the tensor."""
        return np.where((self.sure & HAS_SHIFT) != 0, self.sure, 0)

    @property
    def surely_varies(self) -> tuple[int, bool]:
        """Dimensions along which it certainly varies, and whether each part of it does."""
        if self.free or self.facts.pattern is None:
            return (self.varies if self.free else 0), True
        somewhere, everywhere = varying_dims(self.facts.pattern)
        offset = self.ndim - self.facts.pattern.ndim
        return somewhere << offset, somewhere == everywhere

    @property
    def extent(self) -> int:
        """Along how many dimensions it varies; of a table read at indices, along how many every part of it does."""
        if self.facts.pattern is None:
            return self.varies.bit_count()
        return varying_dims(self.facts.pattern)[1].bit_count()

    def plain(self) -> State:
        """The same degrees without what only this very tensor has: its name, its value, whose mean it is, its sum."""
        return replace(self, facts=_NO_FACTS)


def varying_dims(labels: torch.Tensor) -> tuple[int, int]:
    """The dimensions along which some labels differ, and those along which no two are equal.

    >>> [bin(mask) for mask in varying_dims(torch.tensor([[0, 1, 2], [1, 1, 3]]))]
    ['0b11', '0b0']
    """
    somewhere = everywhere = 0
    for dim, size in enumerate(labels.shape):
        if size > 1 and labels.numel():
            steps = labels.sort(dim=dim).values.diff(dim=dim) != 0
            somewhere |= int(steps.any()) << dim
            everywhere |= int(steps.all()) << dim
    return somewhere, everywhere


def constant(shape: Sequence[int], sources: int, *, degree: float = 0.0, **facts: Any) -> State:
    """A tensor of one degree for every source: 0 for a constant, infinity for zeros."""
    none = np.full(sources, NO_REASON, np.int64)
    blank = State(
        shape=tuple(shape),
        degree=np.full((sources, 1), degree),
        reason=none[:, None],
        shift=np.zeros(sources, np.int64),
        sure=np.zeros(sources, np.int64),
        shift_reason=none,
        ray=np.zeros(sources, np.int64),
        varies=facts.pop("varies", nontrivial(shape)),
    )
    return blank.with_(**facts) if facts else blank


def merge_runs(state: State) -> State:
    """Join neighbouring runs that agree in every row."""
    if state.runs == 1:
        return state.with_(sizes=(), dim=0) if state.sizes else state
    d, r = state.degree, state.reason
    same = (d[:, 1:] == d[:, :-1]) | (np.isnan(d[:, 1:]) & np.isnan(d[:, :-1]) & (r[:, 1:] == r[:, :-1]))
    starts = np.flatnonzero(np.concatenate([[True], ~same.all(axis=0)]))
    if len(starts) == state.runs:
        return state
    sizes = tuple(int(n) for n in np.add.reduceat(np.asarray(state.sizes), starts))
    merged = state.with_(degree=d[:, starts], reason=r[:, starts], sizes=sizes)
    return merged.with_(sizes=(), dim=0) if len(sizes) == 1 else merged


def per_channel(state: State, size: int) -> tuple[Floats, Ints]:
    """`degree` and `reason` with one column per channel of the tracked dimension."""
    if state.runs == 1:
        return np.repeat(state.degree, size, axis=1), np.repeat(state.reason, size, axis=1)
    return np.repeat(state.degree, state.sizes, axis=1), np.repeat(state.reason, state.sizes, axis=1)


def from_channels(state: State, degree: Floats, reason: Ints, dim: int) -> State:
    """The inverse of `per_channel`: columns along `dim` packed into runs."""
    fresh = np.isnan(degree).any(axis=1) & ~state.broken
    ray = np.where(fresh, state.varies, state.ray)
    columns = state.with_(degree=degree, reason=reason, ray=ray, dim=dim, sizes=(1,) * degree.shape[1])
    return merge_runs(columns)


def sum_degrees(degree: Floats, reason: Ints, unequal: int) -> tuple[Floats, Ints]:
    """The degree of a sum over the last axis: zeros do not count, unequal degrees give the reason `unequal`."""
    finite = np.isfinite(degree)
    low = np.where(finite, degree, np.inf).min(axis=-1)
    high = np.where(finite, degree, -np.inf).max(axis=-1)
    broken = np.isnan(degree).any(axis=-1)
    differ = ~broken & (high - low > TOLERANCE)
    out = np.where(broken | differ, np.nan, low)
    return out, np.where(broken, worst(reason), np.where(differ, unequal, NO_REASON))


def mix_runs(state: State, unequal: int, groups: int = 1) -> State:
    """The degree of any sum over the tracked dimension, or over each of `groups` equal parts of it."""
    if state.runs == 1:
        return state
    if groups == 1:
        degree, reason = sum_degrees(state.degree, state.reason, unequal)
        return from_channels(state, degree[:, None], reason[:, None], 0).with_(sizes=())
    channels = state.shape[state.dim]
    degree, reason = per_channel(state, channels)
    split = state.sources, groups, channels // groups
    degree, reason = sum_degrees(degree.reshape(split), reason.reshape(split), unequal)
    return from_channels(state, np.repeat(degree, split[2], axis=1), np.repeat(reason, split[2], axis=1), state.dim)


def common_runs(a: State, b: State, dim_a: int, dim_b: int) -> tuple[Floats, Ints, Floats, Ints, int, tuple[int, ...]]:
    """Degrees and reasons of both on the same runs, with the dimension and sizes of these runs.

    `dim_a` and `dim_b` are the tracked dimensions in the shape the two are broadcast to; where both have runs these
    must agree.
    """
    if b.runs == 1:
        return a.degree, a.reason, b.degree, b.reason, dim_a, a.sizes
    if a.runs == 1:
        return a.degree, a.reason, b.degree, b.reason, dim_b, b.sizes
    ends_a, ends_b = np.cumsum(a.sizes), np.cumsum(b.sizes)
    ends = np.union1d(ends_a, ends_b)
    at_a, at_b = np.searchsorted(ends_a, ends), np.searchsorted(ends_b, ends)
    sizes = tuple(int(n) for n in np.diff(ends, prepend=0))
    return a.degree[:, at_a], a.reason[:, at_a], b.degree[:, at_b], b.reason[:, at_b], dim_a, sizes


def may_mask(x: State) -> bool:
    """Whether it may be zeros and ones, so that a product with it picks elements."""
    return x.varies != 0 and bool(x.fixed.all())


def factor_dims(x: State) -> Any:
    """The dimensions along which the factor g(c) of each row varies."""
    along = np.where(x.uneven, 1 << x.dim, 0) if x.runs > 1 else 0
    return np.where(x.broken, x.ray | along, along)


def one_shift(a: State, b: State) -> Bools:
    """Rows in which both carry a shift that hangs on the same parameter: the two may be one, and cancel in a sum.

    Not so for all parameters together (row 0) where no parameter alone raises the question: there the two are
    biases of their own.
    """
    both = a.shifted & b.shifted
    return both if both[1:].any() else np.zeros_like(both)


def join_pending(*states: State) -> tuple[Pending, ...]:
    """The forms that belong to the shifts of any of the states, each once."""
    return tuple(dict.fromkeys(entry for state in states for entry in state.pending if state.shift[entry.row]))


def without_owners(pending: tuple[Pending, ...]) -> tuple[Pending, ...]:
    """The same of a tensor whose channels have other forms than before."""
    return tuple(dict.fromkeys(entry._replace(owner=None) for entry in pending))


def sure_times(x: State, factor: State) -> Ints:
    """What is certain of the shift of `x` after it is multiplied by `factor`."""
    certain = x.sure_of_parts if may_mask(factor) else x.sure
    along, in_parts = factor.surely_varies
    return np.where(certain != 0, certain | (along if in_parts else 0), 0)


def alike_with(a: State, b: State) -> tuple[int, int] | None:
    """`State.alike` of a sum or a product: of one that is alike with what is constant over those dimensions."""
    for x, other in ((a, b), (b, a)):
        if x.alike is not None and not other.varies & x.alike[0]:
            return x.alike[0], x.alike[1] & ~other.varies
    return None


def move_alike(x: State, shape: Sequence[int], table: Sequence[int]) -> tuple[int, int] | None:
    """`State.alike` of `x` moved to this shape, where every dimension stays one of its own."""
    if x.alike is None:
        return None
    targets = [table[i] for i in dims_in(nontrivial(x.shape))]
    if (
        math.prod(shape) != math.prod(x.shape)
        or any(t.bit_count() != 1 for t in targets)
        or len(set(targets)) < len(targets)
    ):
        return None
    over, alike = (int(mask) for mask in spread(np.array(x.alike), table))
    return over, alike


def pattern_beside(x: State, zeros: State) -> torch.Tensor | None:
    """The pattern of `x` plus a mask of zeros and infinities: where these are nobody sees it."""
    labels, mask = x.facts.pattern, zeros.facts.numbers
    if labels is None or zeros.value == 0.0:
        return labels
    if mask is None:
        somewhere, everywhere = varying_dims(labels)
        return labels if somewhere == everywhere else None
    shape = np.broadcast_shapes(labels.shape, mask.shape)
    labels, hidden = labels.expand(shape), mask.expand(shape).abs() >= INFINITE
    # Unless more are seen than there are rows, no row need have two.
    if labels.numel() - int(hidden.sum()) <= max((labels.numel() // n for n in shape if n > 1), default=0):
        return torch.zeros_like(labels)
    return torch.where(hidden, -1 - torch.arange(labels.numel()).view(labels.shape), labels)
