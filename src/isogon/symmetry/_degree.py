"""The degree of positive homogeneity of a tensor, as a number or as one of three words.

A tensor f has degree d in the parameters w when f(c·w) = c^d · f(w) for every c > 0 (LA, appendix E). Degree 0 is scale
invariance. Where no such d exists the degree is `not homogeneous`; where the rules cannot tell it is `unknown`; and a
tensor that holds only zeros (or infinities, as attention masks do) has `any` degree.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

NUMBER = "number"
ANY = "any"
NOT_HOMOGENEOUS = "not homogeneous"
UNKNOWN = "unknown"

# Two degrees closer than this are one degree: products of thirds and halves in floating point differ by less.
TOLERANCE = 1e-6


@dataclass(frozen=True)
class Degree:
    """One answer: a number, or a word with the reason for it.

    >>> print(Degree.of(0.5), Degree.of(2), Degree(UNKNOWN, reason="no rule for aten.foo"))
    1/2 2 unknown
    >>> Degree.of(0).is_invariant, Degree.of(1).is_invariant, Degree(ANY).is_invariant
    (True, False, True)
    """

    kind: str
    value: Fraction | None = None
    reason: str = ""

    @classmethod
    def of(cls, value: float | Fraction) -> Degree:
        """The degree `value`, where infinity stands for `any`."""
        if isinstance(value, float) and math.isinf(value):
            return cls(ANY, reason="it is zero whatever the scale")
        return cls(NUMBER, Fraction(value).limit_denominator(5040))

    @property
    def is_invariant(self) -> bool:
        """Whether rescaling provably changes nothing: degree 0, or any."""
        return self.kind == ANY or (self.kind == NUMBER and self.value == 0)

    @property
    def is_unknown(self) -> bool:
        return self.kind == UNKNOWN

    @property
    def verdict(self) -> str:
        """`invariant`, `not invariant` or `unknown`."""
        if self.is_unknown:
            return "unknown"
        return "invariant" if self.is_invariant else "not invariant"

    def __str__(self) -> str:
        return self.kind if self.value is None else str(self.value)

    def __float__(self) -> float:
        return math.nan if self.value is None else float(self.value)
