"""Which tuning factors to try: the first grid, the three for the next fraction, more where the top is at an edge."""

from __future__ import annotations

import math

from isogon.errors import ArgumentError, check_number, check_whole
from isogon.search.fit._curve import Curve

#: the best tuning factor of Yun et al. on CIFAR: F = 10/128
USUAL = 10 / 128
#: beyond these no grid grows by itself: weights that turn so slowly keep their first direction for thousands of
#: epochs, and at 4 they forget it within a quarter of one
LIMITS = (2.0**-12, 4.0)
#: tuning factors that are computed are rounded to this part of an octave
ROUNDING = 64


def default_grid(centre: float = USUAL, size: int = 7) -> tuple[float, ...]:
    """`size` tuning factors, ×2 apart, `centre` in the middle.

    >>> default_grid(0.25, size=5)
    (0.0625, 0.125, 0.25, 0.5, 1.0)
    """
    centre = check_number("centre", centre, low=0, low_open=True, cure="guess the tuning factor, 10/128 by default")
    size = check_whole("size", size, low=3, high=99, cure="seven is usual")
    if size % 2 == 0:
        raise ArgumentError("size", "odd", size, "so that the centre is one of the grid")
    return tuple(centre * 2.0**octave for octave in range(-(size // 2), size // 2 + 1))


def round_factor(factor: float) -> float:
    """Round a computed tuning factor to a 64th of an octave, so that another processor computes the same cell.

    >>> round_factor(0.1) == round_factor(0.1 * (1 + 1e-12)), round(round_factor(0.1), 4)
    (True, 0.0996)
    """
    return float(2.0 ** (round(math.log2(factor) * ROUNDING) / ROUNDING))


def refine(curve: Curve) -> tuple[float, float, float]:
    """The cell of the grid next to the top and one step either side, for the next fraction of the data.

    Where the cells are on no grid and none is within half a step of the top, the top itself is the middle.
    """
    middle = min(curve.grid, key=lambda factor: abs(math.log2(factor / curve.tuning_factor)))
    if abs(math.log2(middle / curve.tuning_factor)) > curve.step / 2 * (1 + 1e-9):
        middle = round_factor(curve.tuning_factor)
    ratio = 2.0**curve.step
    return middle / ratio, middle, middle * ratio


def extension(curve: Curve, *, limits: tuple[float, float] = LIMITS, count: int = 2) -> tuple[float, ...]:
    """Up to `count` tuning factors to add where the top lies at an edge of the grid; none where it does not.

    In rising order, one step of the grid apart, within `limits`: an edge that stays one after each extension is
    followed that far and no farther.
    """
    low = check_number("limits", limits[0], low=0, low_open=True, cure="give the smallest tuning factor to try")
    high = check_number("limits", limits[1], low=low, cure="give the largest tuning factor to try")
    check_whole("count", count, high=99, cure="two steps at a time are usual")
    if curve.edge is None:
        return ()
    start, direction = (curve.grid[0], -1) if curve.edge == "low" else (curve.grid[-1], 1)
    beyond = (start * 2.0 ** (direction * curve.step * step) for step in range(1, count + 1))
    # Rounding must not keep out a factor that is the limit itself.
    return tuple(sorted(factor for factor in beyond if low * (1 - 1e-9) <= factor <= high * (1 + 1e-9)))
