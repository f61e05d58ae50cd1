"""How far two things are apart, what chance may do to that, and the verdict that follows."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from isogon.papers.experiment import Verdict

# Student's 97.5 % quantile for 1, 2, … degrees of freedom; beyond, that of the normal law will do.
_QUANTILES = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13, 2.0)


@dataclass(frozen=True)
class Gap:
    """A difference, its standard error (NaN where it cannot be told), and the degrees of freedom of that error.

    Without degrees of freedom the error counts as known.
    """

    size: float
    error: float
    freedom: int | None = None

    @property
    def margin(self) -> float:
        """Half the width of the 95 % interval (Student's)."""
        if self.freedom is None:
            return 2 * self.error
        return self.error * (_QUANTILES[min(self.freedom, len(_QUANTILES)) - 1] if self.freedom else math.nan)

    def within(self, tolerance: float) -> Verdict:
        """`holds` when |gap| is at most the tolerance anywhere in its interval, `fails` when nowhere."""
        if not math.isfinite(self.size + self.margin):
            return "undecided"
        if abs(self.size) + self.margin <= tolerance:
            return "holds"
        return "fails" if abs(self.size) - self.margin > tolerance else "undecided"

    def above(self, least: float = 0.0) -> Verdict:
        """`holds` when the gap exceeds `least` anywhere in its interval, `fails` when nowhere."""
        if not math.isfinite(self.size + self.margin):
            return "undecided"
        if self.size - self.margin > least:
            return "holds"
        return "fails" if self.size + self.margin < least else "undecided"


UNKNOWN = Gap(math.nan, math.nan, 0)


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Of all parts of a claim: one that fails decides, then one that is undecided; no part is undecided."""
    found = list(verdicts)
    if "fails" in found:
        return "fails"
    return "undecided" if "undecided" in found or not found else "holds"


def points(gap: Gap) -> str:
    """A difference of accuracies in percentage points."""
    return f"{100 * gap.size:.2f} ± {100 * gap.error:.2f} points"
