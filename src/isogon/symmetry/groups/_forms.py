"""The same algebra with the powers left open: what must hold of them so that the network stays as it is.

Scale every unknown p (a parameter, or a slice of one) by its own power, w_p → c^{a_p} w_p. A tensor then scales by
c^{v·a} with a vector v of rational numbers, which `State.degree` holds with one row per unknown. Where `check` calls a
tensor not homogeneous, here the powers are asked to make it so: an addition of v₁ and v₂ asks for (v₁ − v₂)·a = 0, a
function that needs degree 0 for v·a = 0. Nothing is ever broken or unknown, and whatever a rule cannot judge asks more
than may be needed, never less: each solution is a symmetry.

A shift (a bias before batch norm) asks for nothing while a normalisation may still remove it. Until then its form waits
in `State.pending`, with a row of `State.shift` for the dimensions along which it varies; `settle` asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from isogon.symmetry import _state as st
from isogon.symmetry._operation import Operation
from isogon.symmetry._reasons import ACTIVATION_CURE, Book
from isogon.symmetry._state import Bools, Floats, Form, Ints, Pending, State

# Powers that differ by less are equal: sums of thirds and halves in floating point differ by less.
_ROUNDING = 1e-9


@dataclass
class Constraints(Book):
    """The forms that must vanish, each with the place that asks for it; and what could not be judged."""

    forms: dict[Form, str] = field(default_factory=dict)
    opaque: dict[str, None] = field(default_factory=dict)  # sentences about operations without a rule

    def ask(self, forms: Iterable[Form], why: str) -> None:
        for form in forms:
            if form:
                self.forms.setdefault(form, why)


def sparse(column: Floats) -> Form:
    """A column of powers as a linear form, which vanishes where it is empty.

    >>> sparse(np.array([0.0, 2.0, -1.0]))
    ((1, 2.0), (2, -1.0))
    """
    rows = np.flatnonzero(np.abs(column) > _ROUNDING)
    return tuple((int(row), float(column[row])) for row in rows)


def _columns(degree: Floats) -> list[int]:
    """The columns that are not zeros of any degree."""
    return [int(column) for column in np.flatnonzero(~np.isposinf(degree).all(axis=0))]


def _only(x: State, pending: Iterable[Pending]) -> State:
    """`x` with the shifts of these forms alone."""
    pending = tuple(pending)
    rows = np.zeros(x.sources, bool)
    rows[[entry.row for entry in pending]] = True
    return replace(x, shift=np.where(rows, x.shift, 0), sure=np.zeros_like(x.sure), pending=pending)


@dataclass
class FormOperation(Operation):
    """An operation of which nothing breaks: it writes into the book what it asks of the powers."""

    rows_are_one: ClassVar[bool] = True

    @property
    def _asked(self) -> Constraints:
        assert isinstance(self.book, Constraints)
        return self.book

    def ask(self, forms: Iterable[Form], why: str) -> None:
        self._asked.ask(forms, why)

    def settle(self, x: State, words: str = "", rows: Bools | None = None, over: int | None = None) -> State:
        """`x` for an operation that cannot carry its shifts (those in `rows`): their forms are asked for."""
        rows = x.shifted if rows is None else rows & x.shifted
        if not rows.any():
            return x
        self.ask((entry.form for entry in x.pending if rows[entry.row]), f"{self.place} sees a sum of tensors")
        return _only(x, [entry for entry in x.pending if not rows[entry.row]])

    def settle_both(self, a: State, b: State) -> tuple[State, State]:
        # Once the first scales as a whole, the product's shift is that of the second times the first.
        return (self.settle(a), b) if a.shifted.any() and b.shifted.any() else (a, b)

    def in_doubt(self, x: State, where: Bools, text: str) -> Ints:
        return x.reason

    def unknown(self, *operands: State, why: str = "") -> State:
        """Whatever it computes, it computes the same if its operands stay the same."""
        for operand in operands:
            x = self.settle(operand)
            forms = [sparse(x.degree[:, column]) for column in _columns(x.degree)]
            if any(forms):
                self._asked.opaque.setdefault(why or f"isogon has no rule for {self.name}")
            self.ask(forms, f"{self.place} is unknown to isogon")
        return self.constant(floating=self.floating)

    def mix(self, x: State, verb: str = "sums over", groups: int = 1) -> State:
        if x.runs == 1:
            return x
        # From here on a shift belongs to all channels.
        x = replace(x, pending=st.without_owners(x.pending))
        if groups > 1:
            channels = x.shape[x.dim]
            degree, _ = st.per_channel(x, channels)
            size = channels // groups
            parts = [self._equal(degree[:, start : start + size], verb) for start in range(0, channels, size)]
            columns = np.repeat(np.stack(parts, axis=1), size, axis=1)
            return st.from_channels(x, columns, np.full_like(columns, st.NO_REASON, dtype=np.int64), x.dim)
        column = self._equal(x.degree, verb)
        reason = np.full((x.sources, 1), st.NO_REASON, np.int64)
        return x.with_(degree=column[:, None], reason=reason, dim=0, sizes=())

    def _equal(self, degree: Floats, verb: str) -> Floats:
        """The one column that all have to be, zeros aside."""
        columns = _columns(degree)
        if not columns:
            return degree[:, 0]
        first = degree[:, columns[0]]
        self.ask((sparse(degree[:, column] - first) for column in columns[1:]), f"{self.place} {verb} their channels")
        return first

    def flatten_runs(self, x: State) -> State:
        return self.mix(x, "mixes")

    def require_zero(self, x: State, what: str = "", cure: str = ACTIVATION_CURE, **facts: Any) -> State:
        x = self.settle(x)
        self.ask((sparse(x.degree[:, column]) for column in _columns(x.degree)), f"{what or self.place} needs degree 0")
        zero = np.zeros((x.sources, 1))
        reason = np.full((x.sources, 1), st.NO_REASON, np.int64)
        facts = {"nonneg": False, **facts}
        return x.plain().with_(degree=zero, reason=reason, dim=0, sizes=(), floating=self.floating, **facts)

    def logarithm(self, x: State) -> State:
        """log(c^d · A) = log A + d · log c: the shift vanishes where d does."""
        x = self.settle(x)
        forms = filter(None, (sparse(x.degree[:, column]) for column in _columns(x.degree)))
        pending = tuple(Pending(form, form[0][0]) for form in forms)
        shift = np.zeros(x.sources, np.int64)
        shift[[entry.row for entry in pending]] = st.HAS_SHIFT | (1 << x.dim if x.runs > 1 else 0)
        zero = np.zeros((x.sources, 1))
        reason = np.full((x.sources, 1), st.NO_REASON, np.int64)
        return x.plain().with_(degree=zero, reason=reason, dim=0, sizes=(), shift=shift, pending=pending, nonneg=False)

    def add(self, first: Any, second: Any, verb: str = "is added to", opposed: bool = False) -> State:
        """a + b: equal forms stay, zeros do not count, unequal ones are asked to be equal, at once or as a shift."""
        a, b = self.align(self.state(first), self.state(second))
        if a.is_zero or b.is_zero:
            return self.beside_zeros(b, a) if a.is_zero else self.beside_zeros(a, b)
        da, _, db, _, dim, sizes = st.common_runs(a, b, a.dim, b.dim)
        da, db = np.broadcast_arrays(da, db)
        none_a, none_b = np.isposinf(da), np.isposinf(db)
        with np.errstate(invalid="ignore"):
            gaps = np.where(none_a | none_b, 0.0, da - db)
        unequal = [(column, form) for column in range(gaps.shape[1]) if (form := sparse(gaps[:, column]))]
        varies = a.varies | b.varies
        main, other = (a, b) if b.varies.bit_count() <= a.varies.bit_count() else (b, a)
        # The channels keep their forms where none of them were zeros; what the other term waits for is not theirs.
        whole = not np.isposinf(main.degree).any()
        mains = main.pending if whole else st.without_owners(main.pending)
        pending = tuple(
            dict.fromkeys((*st.join_pending(replace(main, pending=mains)), *st.without_owners(st.join_pending(other))))
        )
        shift = a.shift | b.shift
        mine, its = (da, db) if main is a else (db, da)
        degree = np.where(np.isposinf(mine), its, mine)
        if unequal and other.varies == varies:
            self.ask((form for _, form in unequal), f"{self._named(other)} {verb} {self._named(main)} in {self.place}")
        elif unequal:
            shift = shift.copy()
            for column, form in unequal:
                # A row for each: that of the smaller term's own power where it has one.
                row = (sparse(np.where(none_b if main is a else none_a, 0.0, its)[:, column]) or form)[-1][0]
                shift[row] |= st.HAS_SHIFT | other.varies
                pending = (*pending, Pending(form, row, sparse(degree[:, column])))
        total = a.plain().with_(
            degree=degree,
            reason=np.full(degree.shape, st.NO_REASON, np.int64),
            shift=shift,
            varies=varies,
            dim=dim,
            sizes=sizes,
            nonneg=a.nonneg and b.nonneg,
            floating=self.floating,
        )
        waiting = dict.fromkeys(entry for entry in pending if entry.form not in self._asked.forms)
        return st.merge_runs(_only(total, waiting))

    def move(self, x: State, shape: Sequence[int], table: Sequence[int], run: Callable[[Any], Any]) -> State:
        """Rearranged; where some channels are left out, so are the shifts that only they have.

        A fused bias of queries, keys and values has a shift for each: the part with the keys has theirs alone.
        """
        out = super().move(x, shape, table, run)
        if not out.pending or x.runs == out.runs == 1:
            return out
        before = {sparse(x.degree[:, column]) for column in _columns(x.degree)}
        gone = before - {sparse(out.degree[:, column]) for column in _columns(out.degree)}
        return _only(out, [entry for entry in out.pending if entry.owner not in gone])

    def _named(self, x: State) -> str:
        return x.label or (f"the constant {x.value:g}" if x.value is not None else "a tensor")

    def overlay(self, old: State, new: State, *, holds: bool = False) -> State:
        """A tensor some elements of which now come from `new`: both have to scale alike."""
        full = st.nontrivial(old.shape)
        a, b = self.flatten_runs(self.settle(old)), self.flatten_runs(self.settle(new))
        if not (a.is_zero or b.is_zero):
            self.ask([sparse(a.degree[:, 0] - b.degree[:, 0])], f"{self.place} writes one tensor into another")
        keeps = b if a.is_zero else a
        return old.plain().with_(
            degree=keeps.degree,
            reason=keeps.reason,
            dim=0,
            sizes=(),
            shift=np.zeros_like(old.shift),
            pending=(),
            varies=full,
            nonneg=old.nonneg and new.nonneg,
        )
