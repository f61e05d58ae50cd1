"""What an operation may say for certain of a tensor with a shift, or of a part of one, and what stays unknown."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from isogon.symmetry import _state as st
from isogon.symmetry._reasons import ORACLE_CURE, Mark, Site
from isogon.symmetry._state import Bools, Ints, State


class Doubts(Site):
    """An operation's place, from where tensors are called not homogeneous, or unknown."""

    def settle(self, x: State, words: str = "", rows: Bools | None = None, over: int | None = None) -> State:
        """`x` for an operation that cannot carry a shift: shifted rows (those in `rows`) become not homogeneous.

        `over` are dimensions over which the operation does remove a shift that is constant there. What then, or at all,
        may be no shift makes the answer unknown.
        """
        rows = x.shifted if rows is None else rows & x.shifted
        if not rows.any():
            return x
        # With or without the shift, what is not homogeneous besides stays so: no doubt there.
        besides = np.isnan(x.degree) & (x.reason < st.UNKNOWN_BASE)
        there = (x.sure if over is None else x.sure & over) != 0
        certain = besides | there[:, None]
        words = words or f"and {self.place} does not remove it"
        doubt = f"and {self.place} may or may not remove it" if over else "and perhaps nothing of it is left"
        reasons = np.repeat(x.shift_reason[:, None], x.runs, axis=1)
        for number in np.unique(x.shift_reason[rows]):
            shifts = (rows & (x.shift_reason == number))[:, None]
            for unknown, part, text in ((False, certain, words), (True, ~certain, doubt)):
                if (shifts & part).any():
                    reasons[shifts & part] = self.book.meet(int(number), self.node, text, unknown)
        # What makes the shift unknown, as where two may cancel, makes nothing else so.
        reasons = np.where(besides & (reasons >= st.UNKNOWN_BASE), x.reason, reasons)
        return x.with_(
            degree=np.where(rows[:, None], np.nan, x.degree),
            reason=np.where(rows[:, None], st.worse(x.reason, reasons), x.reason),
            ray=np.where(rows & (there | ~besides.any(axis=1)), x.varies, x.ray),
        ).drop_shifts(rows)

    def in_doubt(self, x: State, where: Bools, text: str) -> Ints:
        """The reasons of `x`, with "unknown" in the broken entries of the rows, or among the entries, `where`."""
        if not where.any():
            return x.reason
        number = self.unsure("doubt", text, x, cure=ORACLE_CURE)
        entries = where.reshape(len(where), -1) & np.isnan(x.degree)
        return np.where(entries, st.worse(x.reason, np.asarray(number)), x.reason)

    def pick_part(self, x: State) -> State:
        """`x` of which only some elements are seen: what a choice made not homogeneous may be so no longer."""
        text = f"{self.place} picks from {{0}}, of which a part may have one degree"
        return self._doubt_marked(x, "in_parts", text)

    def mark_logarithm(self, x: State, *before: State) -> State:
        """`x` as the logarithm of `before`: what it alone makes not homogeneous an exponential may undo."""
        old = {number for state in before for number in self.certain_reasons(state)}
        new = [number for number in self.certain_reasons(x) if number not in old]
        return x.with_(reason=self.with_mark(x.reason, new, "logged"))

    def apply_weights(self, x: State, by: State) -> State:
        """`x` for a product with `by`: after one with weights in training no exponential undoes a logarithm."""
        if not by.free:
            return x
        numbers = [n for n in (*self.certain_reasons(x), *np.unique(x.shift_reason)) if n >= 0]
        logged = [int(n) for n in numbers if n < st.UNKNOWN_BASE and self.book.get(int(n)).logged]
        if not logged:
            return x
        reason, why = (self.with_mark(numbers, logged, "logged", on=False) for numbers in (x.reason, x.shift_reason))
        return x.with_(reason=reason, shift_reason=why)

    def with_mark(self, reason: Ints, numbers: Iterable[int], mark: Mark, *, on: bool = True) -> Ints:
        """`reason` with these numbers replaced by those of the same reasons with the mark, or without."""
        marked = reason.copy()
        for number in numbers:
            marked[reason == number] = self.book.mark_reason(number, mark, on)
        return marked

    def has_mark(self, reason: Ints, mark: Mark) -> Bools:
        """Where the reason is why a tensor is certainly not homogeneous, and has the mark."""
        numbers = np.unique(reason[(reason >= 0) & (reason < st.UNKNOWN_BASE)])
        return np.isin(reason, [number for number in numbers if getattr(self.book.get(int(number)), mark)])

    def doubt_logarithms(self, x: State) -> State:
        """`x` for a function with an exponential in it: softmax(log u) is u / Σu, whose shifts a norm may remove."""
        return self._doubt_marked(x, "logged", f"{self.place} may undo the logarithm that {{0}} went through")

    def _doubt_marked(self, x: State, mark: Mark, text: str) -> State:
        doubtful = self.has_mark(x.reason, mark) & np.isnan(x.degree)
        return x.with_(reason=self.in_doubt(x, doubtful, text)) if doubtful.any() else x

    def certain_reasons(self, x: State) -> list[int]:
        """The numbers of the reasons why `x` is not homogeneous, doubts aside."""
        if not x.broken.any():
            return []
        numbers = np.unique(x.reason[np.isnan(x.degree)])
        return [int(number) for number in numbers if number < st.UNKNOWN_BASE]
