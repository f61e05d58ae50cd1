"""One operation of the graph while it is judged: the algebra that rules are written in."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from isogon.symmetry import _state as st
from isogon.symmetry._degree import TOLERANCE
from isogon.symmetry._doubts import Doubts
from isogon.symmetry._labels import follow_runs
from isogon.symmetry._reasons import ACTIVATION_CURE, ADD_CURE, BIAS_CURE, CHANNEL_CURE
from isogon.symmetry._state import Bools, State, factor_dims, may_mask


@dataclass
class Operation(Doubts):
    """What a rule sees: the operation's name and place, the shape of its result, and the algebra."""

    shapes: list[tuple[int, ...]]
    floating: bool
    sources: int
    into_division: bool = False  # the result goes only into sqrt, rsqrt, a denominator or a negative power
    into_softmax: bool = False
    #: whether what holds of a row holds of the tensor: rows are powers of one question, not questions
    rows_are_one: ClassVar[bool] = False
    run: Callable[..., Any] | None = None  # the operation itself, to be run on labels

    @property
    def shape(self) -> tuple[int, ...]:
        return self.shapes[0]

    def constant(self, shape: Sequence[int] | None = None, **facts: Any) -> State:
        """A result that no parameter reaches, or that no scale changes."""
        return st.constant(self.shape if shape is None else shape, self.sources, **facts)

    def zeros(self, shape: Sequence[int] | None = None) -> State:
        return self.constant(shape, degree=np.inf, nonneg=True, value=0.0)

    def unknown(self, *operands: State, why: str = "") -> State:
        """A result no rule can judge: unknown for the sources whose scale changes some operand, else still constant."""
        reached = np.zeros(self.sources, bool)
        for operand in operands:
            reached |= ~operand.fixed
        number = self.unsure("unknown", why or f"isogon has no rule for {self.name}", *operands)
        out = self.constant()
        return out.with_(
            degree=np.where(reached[:, None], np.nan, out.degree),
            reason=np.where(reached[:, None], number, out.reason),
            ray=np.where(reached, st.EVERY_DIM, 0),
        )

    def state(self, value: Any) -> State:
        """A Python number as the state of a 0-dimensional constant; states pass through."""
        if isinstance(value, State):
            return value
        number = float(value) if isinstance(value, int | float | bool) else None
        zero = number is not None and (number == 0 or abs(number) >= st.INFINITE)
        return self.constant((), degree=np.inf if zero else 0.0, value=number, nonneg=(number or -1) > 0 or number == 0)

    def mix(self, x: State, verb: str = "sums over", groups: int = 1) -> State:
        """`x` where the tracked dimension is summed over or mixed otherwise, in `groups`: unequal channels break."""
        if x.runs == 1:
            return x
        text = f"{self.place} {verb} channels of unequal degree ({{0}})"
        return st.mix_runs(x, self.broken("channels", text, x, cure=CHANNEL_CURE), groups)

    def scalar(self, x: State) -> State:
        """`x` as one number that stands for all its elements: for indices, grids and what is scattered."""
        flat = self.flatten_runs(self.settle(x))
        return flat.plain().with_(shape=(), dim=0, varies=0, ray=np.where(flat.broken, st.EVERY_DIM, 0))

    def condition(self, x: State, *conditions: State) -> State:
        """`x` picked by indices, masks or the like, which must not change with the scale."""
        for condition in conditions:
            fixed = self.scalar(self.require_zero(condition, f"what {self.place} picks by"))
            if fixed.broken.any():
                x = self.multiply(x, fixed)
        return x

    def flatten_runs(self, x: State) -> State:
        """`x` where the tracked dimension can no longer be followed: uneven rows become unknown."""
        if x.runs == 1:
            return x
        number = self.unsure(
            "channels",
            f"channels of unequal degree ({{0}}) cannot be followed through {self.short}",
            x,
            cure=CHANNEL_CURE,
        )
        return st.mix_runs(x, number)

    def keep(self, x: State, **facts: Any) -> State:
        """A positively homogeneous function of each element, such as ReLU: d → d."""
        return self.settle(x).plain().with_(floating=self.floating, **{"nonneg": False, **facts})

    def power(self, x: State, exponent: float) -> State:
        """x^p: d → p·d."""
        if exponent == 1:
            return x.plain()
        root = x if exponent == 2 else None
        x = self.settle(x)
        if exponent == 0:
            return self.constant(x.shape, nonneg=True, value=1.0)
        degree = np.where(np.isposinf(x.degree), np.inf, x.degree * exponent)
        even = float(exponent).is_integer() and int(exponent) % 2 == 0
        return x.plain().with_(degree=degree, nonneg=x.nonneg or even, square_of=root)

    def logarithm(self, x: State) -> State:
        """log(c^d · A) = log A + d · log c: degree 0 with a shift, which a softmax or a mean removes."""
        source, x = x, self.settle(x)
        moves = np.isfinite(x.degree) & (np.abs(x.degree) > TOLERANCE)
        moving, everywhere = moves.any(axis=1), moves.all(axis=1)
        number = st.NO_REASON
        if moving.any():
            number = self.book.mark_reason(
                self.broken("activation", f"{self.place} turns {{0}} into a shift", x), "logged"
            )
        along = 1 << x.dim if x.runs > 1 else 0
        reason = self.in_doubt(x, x.broken & (x.varies & ~x.ray != 0), f"{self.place} may turn {{0}} into a shift")
        out = st.merge_runs(
            x.plain().with_(
                degree=np.where(np.isnan(x.degree), np.nan, 0.0),
                reason=reason,
                shift=np.where(moving, st.HAS_SHIFT | along, 0),
                sure=np.where(moving, np.where(everywhere, st.HAS_SHIFT, 0) | np.where(x.uneven, along, 0), 0),
                shift_reason=np.where(moving, number, st.NO_REASON),
                nonneg=False,
            )
        )
        return self.mark_logarithm(out, source)

    def require_zero(self, x: State, what: str = "", cure: str = ACTIVATION_CURE, **facts: Any) -> State:
        """A function that is homogeneous only where its input does not change with the scale: 0 → 0."""
        x = self.settle(x)
        zero = (np.abs(x.degree) <= TOLERANCE) | np.isposinf(x.degree)
        wrong = ~zero & ~np.isnan(x.degree)
        number = st.NO_REASON
        if wrong.any():
            number = self.broken("activation", f"{what or self.place} needs degree 0 and gets {{0}}", x, cure=cure)
        degree = np.where(zero, 0.0, np.nan)
        reason = np.where(wrong, number, x.reason)
        facts = {"nonneg": False, **facts}
        ray = np.where(np.isnan(degree).any(axis=1), x.varies, 0)
        return st.merge_runs(x.plain().with_(degree=degree, reason=reason, ray=ray, floating=self.floating, **facts))

    def lift(self, x: State, shape: Sequence[int]) -> State:
        """`x` broadcast to `shape`, its dimensions aligned at the right."""
        offset = len(shape) - x.ndim
        if offset == 0:
            return x if x.shape == tuple(shape) else x.with_(shape=tuple(shape))
        table = [1 << (i + offset) for i in range(x.ndim)]
        return x.with_(
            shape=tuple(shape),
            dim=x.dim + offset,
            shift=st.spread(x.shift, table),
            sure=st.spread(x.sure, table),
            ray=(x.ray << offset) & st.EVERY_DIM,
            varies=x.varies << offset,
            stochastic=x.stochastic << offset,
            alike=None if x.alike is None else (x.alike[0] << offset, x.alike[1] << offset),
            parts=None,
        )

    def align(self, a: State, b: State) -> tuple[State, State]:
        """Both broadcast to one shape and tracked along one dimension at most."""
        shape = np.broadcast_shapes(a.shape, b.shape)
        a, b = self.lift(a, shape), self.lift(b, shape)
        if a.runs > 1 and b.runs > 1 and a.dim != b.dim:
            b = self.flatten_runs(b)
        return a, b

    def add(self, first: Any, second: Any, verb: str = "is added to", opposed: bool = False) -> State:
        """a + b: equal degrees stay, zeros do not count, and an unequal term of smaller extent becomes a shift.

        Where the two are `opposed`, as in a − b, shifts of both that may be one may cancel.
        """
        a, b = self.align(self.state(first), self.state(second))
        if a.is_zero or b.is_zero:
            return self.beside_zeros(b, a) if a.is_zero else self.beside_zeros(a, b)
        da, ra, db, rb, dim, sizes = st.common_runs(a, b, a.dim, b.dim)
        none_a, none_b = np.isposinf(da), np.isposinf(db)
        with np.errstate(invalid="ignore"):
            equal = np.abs(da - db) <= TOLERANCE
        degree = np.where(none_a, db, np.where(none_b, da, np.where(equal, da, np.nan)))
        broken = np.isnan(da) | np.isnan(db)
        unequal = np.isnan(degree) & ~broken
        varies = a.varies | b.varies
        both = a.broken & b.broken  # perhaps by one common factor
        common = st.one_shift(a, b)
        # Shifts of two parts may add up to one of the whole.
        sure = st.both_sure(*(np.where(common, x.sure_of_parts, x.sure) for x in (a, b)))
        if opposed ^ a.turned ^ b.turned:
            # The two may be the same, and cancel, but for what varies where the other does not.
            differ = a.sure_of_parts & ~b.shift | b.sure_of_parts & ~a.shift
            sure = np.where(common, differ & st.EVERY_DIM, sure)
        out = a.plain().with_(
            degree=degree,
            reason=np.where(none_a, rb, np.where(none_b, ra, st.worse(ra, rb))),
            shift=a.shift | b.shift,
            sure=sure,
            shift_reason=st.worse(a.shift_reason, b.shift_reason),
            ray=np.where(np.isnan(degree).any(axis=1), np.where(both, factor_dims(a) | factor_dims(b), varies), 0),
            varies=varies,
            dim=dim,
            sizes=sizes,
            nonneg=a.nonneg and b.nonneg,
            alike=st.alike_with(a, b),
            floating=self.floating,
        )
        if not np.isnan(degree).any():
            return st.merge_runs(out)
        number = self._unequal(a, b, verb) if unequal.any() else st.NO_REASON
        reason = np.where(unequal, number, out.reason)
        # The term that varies along fewer dimensions is the shift of the other, whatever it is.
        main, other = (a, b) if b.extent <= a.extent else (b, a)
        trouble = np.isnan(degree).any(axis=1) & ~both
        if other.extent == varies.bit_count() or not trouble.any():
            return st.merge_runs(out.with_(reason=reason))
        cause = st.worst(np.where(np.isnan(degree), reason, st.NO_REASON))
        held = trouble[:, None]
        along, in_parts = other.surely_varies
        # Else only some channels are shifted, or some parts do not see how the shift varies.
        apart = unequal | broken & (reason < st.UNKNOWN_BASE)
        flag = np.where(apart.all(axis=1) & (in_parts | (along == 0)), st.HAS_SHIFT, 0)
        return st.merge_runs(
            out.with_(
                degree=np.where(held, da if main is a else db, degree),
                reason=np.where(held, ra if main is a else rb, reason),
                shift=np.where(trouble, main.shift | st.HAS_SHIFT | other.varies, out.shift),
                sure=np.where(trouble, st.both_sure(main.sure, flag | along), out.sure),
                shift_reason=np.where(trouble, st.worse(main.shift_reason, cause), out.shift_reason),
                ray=np.where(trouble, np.where(main.broken, factor_dims(main), 0), out.ray),
            )
        )

    def beside_zeros(self, x: State, zeros: State) -> State:
        """x + zeros, or infinities of a mask, which then vary as the mask does."""
        pattern = st.pattern_beside(x, zeros)
        if zeros.value == 0.0:
            return x.plain().with_(pattern=pattern)
        numbers = zeros.facts.numbers
        hidden = None if numbers is None else numbers.abs() >= st.INFINITE
        return self.behind_mask(x.plain(), hidden, zeros.varies).with_(pattern=pattern)

    def behind_mask(self, x: State, hidden: torch.Tensor | None, along: int) -> State:
        """`x` with infinities where it is `hidden`, which varies `along` these dimensions at most.

        No softmax sees what is hidden; but one that sees a single number gives 1, whatever that is.
        """
        several = hidden is not None and all(
            bool((~hidden).sum(dim).max() > 1) for dim, size in enumerate(hidden.shape) if size > 1
        )
        if self.into_softmax and hidden is not None and not several:
            return self.unknown(x, why=f"{self.place} may leave a single number to a softmax")
        masked = x if self.into_softmax and several else x.extend_shifts(along)
        return masked.with_(varies=x.varies | along)

    def choice(self, first: Any, second: Any, verb: str) -> State:
        """Elements of two tensors, which of them does not change with the scale: the degrees must be equal.

        Where they are not, whoever sees only some of the elements may see one degree (`pick_part`).
        """
        a, b = self.pick_part(self.state(first)), self.pick_part(self.state(second))
        out = self.join(a, b, verb)
        # Zeros beside what is not homogeneous are a mask, and nobody looks at them alone.
        some_whole = ~(a.broken | a.shifted | a.vanishing) | ~(b.broken | b.shifted | b.vanishing)
        marked = self.with_mark(out.reason, self.certain_reasons(out), "in_parts")
        return out.with_(reason=np.where(some_whole[:, None], marked, out.reason))

    def join(self, first: Any, second: Any, verb: str) -> State:
        """A comparison of two tensors element by element, or a choice by it: the degrees must be equal."""
        a, b = self.align(self.state(first), self.state(second))
        alike = st.one_shift(a, b)
        full = st.nontrivial(a.shape)
        out = self.add(self.settle(a).with_(varies=full), self.settle(b).with_(varies=full), verb)
        return out.with_(
            reason=self.in_doubt(out, alike, f"{self.place} sees {{0}}, both sides of which may have one shift")
        )

    def sign(self, x: State) -> State:
        """What depends on the sign of each element alone: any degree → 0."""
        x = self.settle(x)
        degree = np.where(np.isnan(x.degree), np.nan, 0.0)
        reason = self.in_doubt(
            x, x.broken & (x.varies & ~x.ray != 0), f"{self.place} sees the sign of {{0}}, which may stay"
        )
        return st.merge_runs(x.plain().with_(degree=degree, reason=reason, nonneg=False, floating=self.floating))

    def _unequal(self, a: State, b: State, verb: str) -> int:
        named = b if b.label or b.value is not None or not (a.label or a.value is not None) else a
        other = a if named is b else b
        if named.label:
            return self.broken("bias", f"{{0}} {verb} {{1}}", named, other, cure=BIAS_CURE)
        if named.value is not None:
            return self.broken(
                "constant", f"{{0}} {verb} {{1}}", named, other, cure="normalise before the constant is added"
            )
        return self.broken("add", f"{{0}} {verb} {{1}}", named, other, cure=ADD_CURE)

    def multiply(self, first: Any, second: Any) -> State:
        """a · b: (d₁, d₂) → d₁ + d₂. A shift of one factor is multiplied by the other and may vary with it."""
        if first is second and isinstance(first, State):
            return self.power(first, 2).with_(floating=self.floating)
        a, b = self.align(self.state(first), self.state(second))
        a, b = self.pick_part(a) if may_mask(b) else a, self.pick_part(b) if may_mask(a) else b
        a, b = self.apply_weights(a, b), self.apply_weights(b, a)
        a, b = self.settle_both(a, b)
        da, ra, db, rb, dim, sizes = st.common_runs(a, b, a.dim, b.dim)
        zero = np.isposinf(da) | np.isposinf(db)
        with np.errstate(invalid="ignore"):
            degree = np.where(zero, np.inf, da + db)
        sure = np.where(a.shifted, st.sure_times(a, b), 0) | np.where(b.shifted, st.sure_times(b, a), 0)
        shift = np.where(a.shifted, a.shift | b.varies, 0) | np.where(b.shifted, b.shift | a.varies, 0)
        return st.merge_runs(
            a.plain().with_(
                degree=degree,
                reason=np.where(np.isnan(degree), st.worse(ra, rb), st.NO_REASON),
                shift=np.where(a.vanishing | b.vanishing, 0, shift),
                sure=np.where(a.vanishing | b.vanishing, 0, sure),
                shift_reason=st.worse(a.shift_reason, b.shift_reason),
                ray=factor_dims(a) | factor_dims(b),
                varies=a.varies | b.varies,
                dim=dim,
                sizes=sizes,
                nonneg=a.nonneg and b.nonneg,
                value=a.value * b.value if a.value is not None and b.value is not None else None,
                turned=a.turned ^ b.turned ^ ((a.value or 0) < 0) ^ ((b.value or 0) < 0),
                alike=st.alike_with(a, b),
                floating=self.floating,
                pending=st.without_owners(st.join_pending(a, b)),
            )
        )

    def settle_both(self, a: State, b: State) -> tuple[State, State]:
        """Both factors of a product: where both have a shift, the product has a part that is neither's."""
        both = a.shifted & b.shifted
        return self.settle(a, rows=both), b.drop_shifts(both)

    def divide(self, numerator: Any, denominator: Any) -> State:
        """a / b: (d₁, d₂) → d₁ − d₂."""
        a, b = self.state(numerator), self.settle(self.state(denominator))
        if np.isposinf(b.degree).any():
            return self.unknown(a, b, why=f"{self.place} divides by zeros")
        wide_a, wide_b = self.align(a, b)
        doubt = wide_a.broken & wide_b.broken & ((wide_a.varies | wide_b.varies) & ~wide_a.ray != 0)
        # Nothing that is constant where a shift varies takes the shift's share of the sum away.
        doubt &= (wide_a.sure & st.EVERY_DIM & ~wide_b.varies) == 0
        out = self.multiply(a, self.power(b, -1).with_(nonneg=b.nonneg))
        if doubt.any():
            # g(c)·A over something that may be g(c) as well: the two may cancel.
            number = self.unsure("ratio", f"{self.place} divides {{0}} by {{1}}, which may cancel", wide_a, wide_b)
            cancel = doubt[:, None] & np.isnan(out.degree)
            out = out.with_(reason=np.where(cancel, st.worse(out.reason, np.asarray(number)), out.reason))
        return out

    def reduce(self, x: State, dims: Sequence[int] | None, keepdim: bool, how: str = "sum") -> State:
        """A `sum`, `mean` or `extreme` over `dims` (all of them where None or empty): equal degrees stay.

        A shift that is constant over `dims` passes a mean or an extreme unchanged; a sum or mean turns any other shift
        into another shift, an extreme does not.
        """
        over = st.mask_over(dims, x.ndim)
        source = x
        if how == "extreme":
            x = self.settle(x, rows=(x.shift & over) != 0, over=over)
        if x.runs > 1 and over >> x.dim & 1:
            x = self.mix(x, "reduces over")
        table, position, shape = [], 0, []
        for i, size in enumerate(x.shape):
            gone = over >> i & 1
            table.append(0 if gone else 1 << position)
            if not gone or keepdim:
                shape.append(1 if gone else size)
                position += 1
        dim = 0 if x.runs == 1 else table[x.dim].bit_length() - 1
        out = x.plain().with_(
            shape=tuple(shape),
            dim=dim,
            shift=st.spread(x.shift, table),
            sure=st.spread_surely(x.sure, table, shape),
            varies=int(st.spread(np.array([x.varies]), table)[0]),
            centre=None if how == "sum" else (source, over, how),
            floating=self.floating,
        )
        ray = np.where((x.ray & over) != 0, out.varies, st.spread(x.ray, table))
        return out.with_(ray=np.where(x.broken, ray, 0))

    def deviation(self, x: State, dims: Sequence[int] | None, keepdim: bool, power: int = 2) -> State:
        """Variance (`power` 2) or standard deviation (1) over `dims`: blind to a shift that is constant over them."""
        over = st.mask_over(dims, x.ndim)
        x = self.settle(x, rows=(x.shift & over) != 0, over=over)
        x = x.with_(shift=np.zeros_like(x.shift))
        return self.power(self.reduce(x, dims, keepdim), power).plain().with_(nonneg=True)

    def normalise(self, x: State, dims: Sequence[int], *, centred: bool = True, groups: int = 1) -> State:
        """(x − mean) / deviation over `dims` (without the mean where not `centred`): any degree → 0.

        Degrees must agree over `dims`. A shift that is constant over `dims` is removed with the mean. The first of
        `dims` may be split into `groups`, each normalised by itself.
        """
        over = st.mask_of(dims, x.ndim) & st.nontrivial(x.shape)
        name = self.place
        if centred and not over & x.varies:
            return self.zeros(x.shape)
        outside = st.nontrivial(x.shape) & ~over | (1 << dims[0] if groups > 1 else 0)
        # After an instance norm the deviation of two channels together is a number of γ and β alone.
        if x.alike is not None and x.alike[0] & ~(over & ~outside) == 0:
            outside &= ~x.alike[1]
        if x.runs > 1 and over >> x.dim & 1:
            ray = np.where(x.uneven & ~x.broken, 1 << x.dim | outside, x.ray)
            several = groups > 1 and x.dim == dims[0]
            x = self.mix(x, "normalises together", groups if several else 1).with_(ray=ray)
        stays = (x.shift & over) != 0 if centred else x.shifted
        surely = stays & ((x.sure & over if centred else x.sure) != 0)
        before = x
        x = self.settle(x, rows=stays, over=over if centred else None)
        x = x.with_(shift=np.zeros_like(x.shift))
        reason = self.in_doubt(
            x, x.broken & ~surely & ((x.ray & over) == 0), f"{name} may or may not divide {{0}} by what makes it so"
        )
        # What is left is g(c)·A + B(c) divided by a deviation that is a number for each index outside `over`.
        ray = np.where(before.broken, before.ray, 0) | np.where(x.broken & ~stays, x.ray, 0) | outside
        shift = np.where(stays, before.shift, 0) | outside | st.HAS_SHIFT
        return st.merge_runs(
            x.plain().with_(
                degree=np.where(np.isfinite(x.degree), 0.0, x.degree),
                reason=reason,
                ray=np.where(x.broken, ray, 0),
                shift=np.where(x.broken, shift, 0),
                sure=np.where(x.broken & surely, before.sure & (over | st.HAS_SHIFT), 0),
                shift_reason=np.where(x.broken, st.worst(reason), st.NO_REASON),
                nonneg=False,
                alike=(over, st.nontrivial(x.shape) & ~over) if centred and groups == 1 else None,
                floating=self.floating,
            )
        )

    def move(self, x: State, shape: Sequence[int], table: Sequence[int], run: Callable[[Any], Any]) -> State:
        """`x` with its elements rearranged: dimension i goes to dimensions `table[i]`; `run` does it to a tensor."""
        if math.prod(shape) < math.prod(x.shape):
            x = self.pick_part(x).with_(shift=x.shift, sure=x.sure_of_parts)
        out = x.plain().with_(
            shape=tuple(shape),
            shift=st.spread(x.shift, table),
            sure=st.spread_surely(x.sure, table, shape),
            ray=st.spread(x.ray, table),
            varies=int(st.spread(np.array([x.varies]), table)[0]) & st.nontrivial(shape),
            nonneg=x.nonneg,
            value=x.value,
            alike=st.move_alike(x, shape, table),
            floating=self.floating,
        )
        if x.runs == 1:
            return out
        followed = follow_runs(x, shape, run)
        if followed is None:
            flat = self.flatten_runs(x)
            return out.with_(degree=flat.degree, reason=flat.reason, dim=0, sizes=(), pending=flat.pending)
        dim, labels = followed
        return st.from_channels(out, x.degree[:, labels], x.reason[:, labels], dim)

    def overlay(self, old: State, new: State, *, holds: bool = False) -> State:
        """A tensor some elements of which, perhaps none or all, now come from `new`; or which `holds` all of `new`."""
        flat = self.flatten_runs(new)
        degree = np.stack(np.broadcast_arrays(old.degree, flat.degree), axis=-1)
        reason = np.stack(np.broadcast_arrays(old.reason, flat.reason), axis=-1)
        words = f"{self.place} writes {{1}} in place into a part of {{0}}"
        number = self.unsure("alias", words, old, new, cure="write it without in-place operations")
        joined, why = st.sum_degrees(
            degree, np.where(np.isnan(degree), st.worse(reason, np.asarray(number)), reason), number
        )
        # What is not homogeneous stays so beside anything, though a part may not see it, and wherever both are.
        broken = np.isnan(degree) & (reason < st.UNKNOWN_BASE)
        beside = self.with_mark(reason[..., 1], self.certain_reasons(flat), "in_parts")
        why = np.where(broken[..., 1] & (holds and old.runs == 1), beside, why)
        both = np.where(self.has_mark(reason[..., 0], "in_parts"), reason[..., 0], reason[..., 1])
        why = np.where(broken.all(axis=-1), both, why)
        full = st.nontrivial(old.shape)
        shifted = old.shifted | new.shifted
        sure = old.sure & new.sure & st.HAS_SHIFT
        whole = self._everywhere(flat) & (self._everywhere(old) | ~old.broken)
        return st.merge_runs(
            old.plain().with_(
                degree=joined,
                reason=why,
                shift=np.where(shifted, st.HAS_SHIFT | full, 0),
                sure=sure,
                shift_reason=np.where(
                    sure != 0, st.worse(old.shift_reason, new.shift_reason), np.where(shifted, number, st.NO_REASON)
                ),
                ray=np.where(np.isnan(joined).any(axis=1) & whole, full, 0),
                varies=full,
                nonneg=old.nonneg and new.nonneg,
            )
        )

    def overwrite(self, old: State, pieces: Sequence[State]) -> State:
        """A tensor all elements of which now come from one or another of the pieces."""
        flat = [self.flatten_runs(piece) for piece in pieces]
        full = st.nontrivial(old.shape)
        whole = [
            x.plain().with_(
                shape=old.shape,
                dim=0,
                shift=np.where(x.shifted, st.HAS_SHIFT | full, 0),
                sure=x.sure & st.HAS_SHIFT,
                ray=np.where(self._everywhere(x), full, 0),
                varies=full,
            )
            for x in flat
        ]
        return functools.reduce(lambda before, piece: self.overlay(before, piece, holds=True), whole)

    def _everywhere(self, x: State) -> Bools:
        """Rows in which what makes `x` not homogeneous may vary along every dimension along which `x` does."""
        return np.asarray(x.broken & (x.varies & ~x.ray == 0))
