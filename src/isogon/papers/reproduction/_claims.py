"""How far two things are apart, how much of that may be noise, and the verdict that follows."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import pandas as pd

from isogon.papers.reproduction._experiment import Judgement, Verdict

# Student's 97.5 % quantile for 1, 2, … degrees of freedom; the last, close to the normal law's, serves for more.
_QUANTILES = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13, 2.0)


@dataclass(frozen=True)
class Gap:
    """A difference, its standard error (NaN if unknown), and the degrees of freedom of that error.

    Without degrees of freedom the error counts as known.
    """

    size: float
    error: float
    freedom: int | None = None

    def text(self, unit: str = "", *, times: float = 1.0, digits: int = 2, signed: bool = False) -> str:
        """The gap times `times` as text; an unknown error, such as that of one seed, is called so."""
        size = f"{times * self.size:{'+' if signed else ''}.{digits}f}"
        if math.isnan(self.error):
            return f"{size}{unit} (of unknown error)"
        return f"{size} ± {times * self.error:.{digits}f}{unit}"

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


def mean_of(values: pd.Series[float]) -> Gap:
    """The mean of independent values, and its standard error."""
    numbers = values.to_numpy(dtype=float)
    if not len(numbers):
        return UNKNOWN
    error = float(numbers.std(ddof=1)) / math.sqrt(len(numbers)) if len(numbers) > 1 else math.nan
    return Gap(float(numbers.mean()), error, len(numbers) - 1)


def worst_verdict(verdicts: Iterable[Verdict]) -> Verdict:
    """The verdict on all parts of a claim: one that fails decides, then an undecided one; undecided without parts."""
    parts = list(verdicts)
    if "fails" in parts:
        return "fails"
    return "undecided" if "undecided" in parts or not parts else "holds"


def combine(*parts: Judgement) -> Judgement:
    """All parts of a claim as one: whole sentences follow each other, semicolons separate phrases."""
    texts = [part.sentence for part in parts]
    sentence = " ".join(texts) if all(text.endswith(".") for text in texts) else "; ".join(texts) + "."
    numbers = {name: value for part in parts for name, value in part.numbers.items()}
    return Judgement(worst_verdict(part.verdict for part in parts), sentence, numbers)


def points(gap: Gap) -> str:
    """A difference of accuracies in percentage points."""
    return gap.text(" points", times=100)


def finished_rows(table: pd.DataFrame, **labels: str | int) -> pd.DataFrame:
    """The rows of finished runs with these labels; a table without statuses counts as finished."""
    mask = table["status"] == "finished" if "status" in table else pd.Series(True, index=table.index)
    for name, value in labels.items():
        mask &= table[name] == value
    return table[mask]
