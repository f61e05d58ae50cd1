"""What is learnt: the top of one curve over the tuning factor, and its trend over data sizes. Needs numpy alone."""

from __future__ import annotations

from isogon.search.fit._curve import MOST_SEEDS, Curve, fit_curve
from isogon.search.fit._grids import ROUNDING, default_grid, extension, refine, round_factor
from isogon.search.fit._trend import Trend, transfer_trend

__all__ = [
    "MOST_SEEDS",
    "ROUNDING",
    "Curve",
    "Trend",
    "default_grid",
    "extension",
    "fit_curve",
    "refine",
    "round_factor",
    "transfer_trend",
]
