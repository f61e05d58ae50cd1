"""The best tuning factor of the full data, from those of its fractions.

The theory has the best F the same at every data size N. Printed tables have it grow a little: a straight line through
log₂ F* against log₂ N rises by 0.21 to 0.52 in each of the 18 panels of Yun et al., tables 1, 2 and 6 to 9 (N from
3,125 to 50,000, in table 9 from 12,500 to 100,000), by 0.31 in the mean. So

    log₂ F*(N) = a + b · log₂(N/N_full),        b ~ N(0, 1/3²),

where no trend is the prior's mean and 1/3 the root mean square of those slopes. Two fractions a factor 2 apart tell
little about b; the interval includes what stays unknown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from isogon.errors import ArgumentError, check_number, check_whole
from isogon.search.fit._curve import HALF_WIDTH, Curve

#: standard deviation of the slope before any curve is seen, in octaves of F per octave of N
SLOPE_SPREAD = 1 / 3
# Error of a top, in octaves, that no number of seeds removes: real curves are not quite the fitted shape.
_SHAPE_ERROR = 0.1


@dataclass(frozen=True, kw_only=True)
class Trend:
    """The best tuning factor at `samples` training samples, with its `interval` (probability `LEVEL`).

    `spread` is its standard deviation in octaves. `slope` and `slope_spread` are the octaves by which F* rises for
    every doubling of the data, and how surely; `sizes` the data sizes that it rests on.
    """

    samples: int
    tuning_factor: float
    interval: tuple[float, float]
    spread: float
    slope: float
    slope_spread: float
    sizes: tuple[int, ...]

    def at(self, samples: int) -> float:
        """The line at another data size."""
        return float(self.tuning_factor * (samples / self.samples) ** self.slope)


def transfer_trend(
    curves: Mapping[int, Curve], samples: int, *, slope: float = 0.0, slope_spread: float = SLOPE_SPREAD
) -> Trend:
    """The tops of `curves` (data size → curve) carried to `samples`, shrunk towards the prior's `slope`.

    With V = diag(sᵢ²) + τ² x xᵀ for xᵢ = log₂(Nᵢ/N_full), sᵢ the spread of top i and τ = `slope_spread`, the answer a
    is the mean of the tops weighted by V⁻¹. With one size it is that size's top, and the prior alone makes the
    interval grow with the distance. A top at the edge of its grid counts as known to one step at best.
    """
    if not curves:
        raise ArgumentError("curves", "one or more", {}, "fit a curve to the runs of each data size first")
    samples = check_whole("samples", samples, cure="count the training samples of the full run")
    slope = check_number("slope", slope, cure="0 means no trend")
    slope_spread = check_number("slope_spread", slope_spread, low=0, cure="0 means that the slope is known")
    sizes = tuple(sorted(check_whole("curves", size, cure="its keys are numbers of samples") for size in curves))
    octaves = np.array([math.log2(size / samples) for size in sizes])
    tops = np.array([math.log2(curves[size].tuning_factor) for size in sizes]) - slope * octaves
    spreads = np.array([_spread_of(curves[size]) for size in sizes])

    covariance = np.diag(spreads**2) + slope_spread**2 * np.outer(octaves, octaves)
    weights = np.linalg.solve(covariance, np.ones(len(sizes)))
    variance = 1 / weights.sum()
    top = variance * (weights @ tops)
    # How much of the slope the curves reveal once a is fitted too: P = V⁻¹ − V⁻¹1 1ᵀV⁻¹/(1ᵀV⁻¹1).
    revealed = np.linalg.solve(covariance, octaves) - variance * weights * (weights @ octaves)
    learnt = slope_spread**2 * (revealed @ tops)
    left = slope_spread**2 * max(0.0, 1 - slope_spread**2 * (revealed @ octaves))
    spread = math.sqrt(variance)
    return Trend(
        samples=samples,
        tuning_factor=float(2.0**top),
        interval=(float(2.0 ** (top - HALF_WIDTH * spread)), float(2.0 ** (top + HALF_WIDTH * spread))),
        spread=spread,
        slope=float(slope + learnt),
        slope_spread=math.sqrt(left),
        sizes=sizes,
    )


def _spread_of(curve: Curve) -> float:
    spread = math.hypot(curve.spread, _SHAPE_ERROR)
    return max(spread, curve.step) if curve.edge else spread
