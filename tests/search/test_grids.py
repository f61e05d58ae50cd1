"""Which tuning factors are tried."""

from __future__ import annotations

import math

import numpy as np
import pytest

from isogon.errors import ArgumentError
from isogon.search.fit._curve import fit_curve
from isogon.search.fit._grids import LIMITS, default_grid, extension, refine


def curve_with_top(top, grid=None):
    return fit_curve([(F, 0, 90 - math.log2(F / top) ** 2) for F in grid or default_grid()])


def test_the_usual_grid():
    grid = default_grid()
    assert grid[3] == 10 / 128
    assert np.diff(np.log2(grid)) == pytest.approx(np.ones(6))
    assert default_grid(0.25, size=3) == (0.125, 0.25, 0.5)


def test_refine_gives_the_three_cells_round_the_top():
    grid = default_grid(0.25)
    assert refine(curve_with_top(0.3, grid)) == (0.125, 0.25, 0.5)
    assert refine(curve_with_top(0.45, grid)) == (0.25, 0.5, 1.0)
    # At the edge the third cell is a new one, and a grid of √2 steps stays one.
    assert refine(curve_with_top(9.0, grid)) == (1.0, 2.0, 4.0)
    fine = tuple(0.25 * 2 ** (i / 2) for i in range(-3, 4))
    assert refine(curve_with_top(0.25, fine)) == pytest.approx((0.25 / 2**0.5, 0.25, 0.25 * 2**0.5))


def test_a_grid_grows_only_at_an_edge():
    grid = default_grid(0.25)
    assert extension(curve_with_top(0.25, grid)) == ()
    assert extension(curve_with_top(1e-3, grid)) == pytest.approx((0.0078125, 0.015625))
    assert extension(curve_with_top(2.0, default_grid(0.125)), count=1) == (2.0,)
    fine = tuple(0.25 * 2 ** (i / 2) for i in range(-4, 1))
    assert extension(curve_with_top(1.0, fine)) == pytest.approx((0.25 * 2**0.5, 0.5))


def test_a_grid_grows_to_its_limits_and_no_farther():
    grid = default_grid(0.25)
    assert extension(curve_with_top(100, grid)) == (4.0,)
    assert extension(curve_with_top(100, grid), limits=(0.1, 2.0)) == ()
    for top in (1e-9, 1e9):
        grid = default_grid()
        for _ in range(20):
            grid = tuple(sorted((*grid, *extension(curve_with_top(top, grid)))))
        assert len(set(grid)) == len(grid) <= 15
        assert grid[0] >= LIMITS[0] * 0.999
        assert grid[-1] <= LIMITS[1] * 1.001


@pytest.mark.parametrize("top", [2e-3, 0.01, 0.3, 1.5])
def test_growing_finds_a_top_outside(top):
    grid = default_grid()
    for _ in range(4):
        curve = curve_with_top(top, grid)
        grid = tuple(sorted((*grid, *extension(curve))))
    assert curve.edge is None
    assert curve.tuning_factor == pytest.approx(top)


def test_bad_arguments_are_refused():
    with pytest.raises(ArgumentError, match="size must be odd"):
        default_grid(size=4)
    with pytest.raises(ArgumentError, match="centre"):
        default_grid(0)
    with pytest.raises(ArgumentError, match="limits"):
        extension(curve_with_top(100), limits=(1.0, 0.1))
    with pytest.raises(ArgumentError, match="count"):
        extension(curve_with_top(100), count=0)
