"""Accuracy against the tuning factor at one data size: where the top is, how surely, and what missing it costs.

Near its top the mean accuracy over seeds is taken as a quadratic in x = log₂ F with a little skew, about F* = 2^{x*}

    A(x) = height − curvature · ((x − x*)² + skew · (x − x*)³),        skew ~ N(0, 0.25²),

fitted by least squares to the best cell, up to two cells on either side, and any others within two steps of the grid.
Three cells would follow every accident of the noise, and the whole grid is no parabola. Printed curves fall faster
above the top than below it: cubics through the five top cells of the columns of Yun et al. have a median skew of 0.2 to
0.3 in each of the tables 1 to 4 and 6 to 10. A plain parabola through such a curve has its top a quarter of an octave
low whatever the number of seeds, and an interval that misses it. The normal prior on the skew lets the data speak where
they can and is exact on a parabola; its price is a top that scatters up to twice as much where the curve is one.

Cell i weighs 1/(σᵢ²/nᵢ + (0.1 dᵢ)²): the noise of its mean over nᵢ seeds, and the error of the shape itself, a tenth of
the fall dᵢ below the best cell. A cell just before divergence therefore hardly pulls the top.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from isogon.errors import ArgumentError, check_number, check_whole

#: the probability with which an interval is meant to hold the truth
LEVEL = 0.9
#: that interval's half-width in standard deviations
HALF_WIDTH = NormalDist().inv_cdf((1 + LEVEL) / 2)
#: the most seeds that are ever suggested: the answer to a curve with no top at all
MOST_SEEDS = 100

# Cells, or steps, on either side of the best that the shape is fitted to.
_REACH = 2
_SKEW = 0.25
_MISFIT = 0.1
# The typical variance counts as this many degrees of freedom beside those of a cell's own.
_PRIOR_FREEDOM = 4.0
# A median of variances is worth this part of the degrees of freedom that their mean has.
_MEDIAN_EFFICIENCY = 0.64

_Floats = NDArray[np.float64]
_Source = Literal["seeds", "given", "residuals", "nothing"]
_Edge = Literal["low", "high"] | None


@dataclass(frozen=True, kw_only=True)
class Curve:
    """The top of one curve of accuracy against the tuning factor.

    `grid`, `means`, `counts`: the cells in rising order, their mean accuracies (NaN where no seed survived) and the
    seeds behind each. `tuning_factor` is F* with its `interval` (probability `LEVEL`) and its standard deviation
    `spread` in octaves; `step` is the usual distance between neighbours of the grid, in octaves too. `shape` are the
    fit's coefficients of 1, d, d², d³ for d octaves from F*. `losses` is the accuracy given away at F*/2 and at 2F*.

    `noise` is the standard deviation of one run; `noise_from` is its source: the spread over `seeds`; `given` by the
    caller; the `residuals` of a parabola, taken as normal; or `nothing`, where single runs leave no residual and the
    interval is one step of the grid either way.

    `edge` is where the grid should grow; `flat` says that the top is lost in the noise; `seeds_needed` is the number
    of seeds per cell (those it has included) for an interval of one step either way, None where it is narrower already.
    """

    grid: tuple[float, ...]
    means: tuple[float, ...]
    counts: tuple[int, ...]
    tuning_factor: float
    interval: tuple[float, float]
    spread: float
    step: float
    shape: tuple[float, float, float, float]
    losses: tuple[float, float]
    noise: float
    noise_from: _Source
    edge: _Edge
    flat: bool
    seeds_needed: int | None

    @property
    def height(self) -> float:
        """The fitted accuracy at F*."""
        return self.shape[0]

    @property
    def curvature(self) -> float:
        """The fitted fall in accuracy per squared octave from F*."""
        return -self.shape[2]

    def accuracy(self, tuning_factor: float) -> float:
        """The fit at `tuning_factor`; trust it within two steps of the top."""
        return float(np.polynomial.Polynomial(self.shape)(math.log2(tuning_factor / self.tuning_factor)))


def fit_curve(
    points: Iterable[tuple[float, int, float]],
    *,
    seed: int = 0,
    bootstrap: int = 2000,
    noise: float | None = None,
    step: float | None = None,
) -> Curve:
    """The top of the curve through `points`, each (tuning factor, seed, accuracy), NaN for a run that was lost.

    The interval is a bootstrap over seeds: every seed's deviation from the mean of its cell, in units of the cell's
    spread, is resampled from all of them, and the whole fit repeated, choice of cells included. Deviations are
    pooled because the two or three of one cell, resampled by themselves, have half or two thirds of the variance
    that they came from. Each resample also takes a noise level that the seeds leave possible (χ² of their degrees of
    freedom), so that few seeds give wide intervals. `noise`, the standard deviation of one run, serves where no cell
    has two seeds; without it the residuals of a parabola, taken as normal. `step` is the distance in octaves that
    counts as one step where the cells are on no grid; the median distance of neighbours unless given.

    A curve is flat when its interval is wider than two steps and than half of the range that F* may take.

    >>> curve = fit_curve((F, 0, 90 - math.log2(F / 0.1) ** 2) for F in (0.025, 0.05, 0.1, 0.2, 0.4))
    >>> round(curve.tuning_factor, 6), round(curve.height, 6), curve.edge, curve.flat
    (0.1, 90.0, None, False)
    """
    check_whole("seed", seed, low=0, cure="any whole number fixes the samples")
    check_whole("bootstrap", bootstrap, low=100, high=10**6, cure="2000 samples are plenty")
    if noise is not None:
        noise = check_number("noise", noise, low=0, cure="give the standard deviation of one run's accuracy")
    if step is not None:
        step = check_number("step", step, low=0, low_open=True, cure="one octave is usual")
    cells = _cells(points)
    alive = {factor: accuracies for factor, accuracies in cells.items() if len(accuracies)}
    if len(alive) < 3:
        raise ArgumentError(
            "points",
            "finite at three tuning factors or more",
            f"{len(alive)} of {len(cells)}",
            "widen the grid towards tuning factors at which runs survive",
        )
    grid, x, values = np.log2(list(cells)), np.log2(list(alive)), list(alive.values())
    means = np.array([accuracies.mean() for accuracies in values])
    counts = np.array([len(accuracies) for accuracies in values])
    step = float(np.median(np.diff(grid))) if step is None else step

    noises, noise_from, freedom = _noises(x, means, values, noise, step)
    errors = noises / np.sqrt(counts)
    (top,), (shape,) = _tops(x, means[None], errors, step)
    if noise_from == "nothing":
        low, high = _ends(x, step)
        low, high = max(low, top - step), min(high, top + step)
        spread = step / HALF_WIDTH
    else:
        draws = _draws(values, noises, freedom, bootstrap, np.random.default_rng(seed))
        tops, _ = _tops(x, means + draws, errors, step)
        low, high = np.quantile(tops, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        spread = float(np.std(tops))
    edge = _edge(grid, float(x[_best(means[None], errors)[0]]), float(top))
    tied = np.ptp(means) == 0 and (noise_from == "nothing" or not noises.any())
    if tied:  # all the same, to the last digit: nothing shows where the top is
        low, high = _ends(x, step)
        top, shape, edge, spread = (low + high) / 2, np.array([means[0], 0.0, 0.0, 0.0]), None, (high - low) / 2
    wide = high - low > 2 * step * (1 + 1e-9)
    seeds_needed: int | None = None
    if tied:
        seeds_needed = MOST_SEEDS
    elif wide:
        seeds_needed = _seeds_needed(x, means, errors, float(counts.mean()), (high - low) / (2 * step), step)
    return Curve(
        grid=tuple(cells),
        means=tuple(float(cell.mean()) if len(cell) else math.nan for cell in cells.values()),
        counts=tuple(len(cell) for cell in cells.values()),
        tuning_factor=float(2.0**top),
        interval=(float(2.0**low), float(2.0**high)),
        spread=spread,
        step=step,
        shape=(float(shape[0]), float(shape[1]), float(shape[2]), float(shape[3])),
        losses=_losses(x, means, float(top), np.polynomial.Polynomial(shape)),
        noise=float(np.median(noises)),
        noise_from=noise_from,
        edge=edge,
        flat=bool(tied or (wide and high - low > (x[-1] - x[0] + step) / 2)),
        seeds_needed=seeds_needed,
    )


def _cells(points: Iterable[tuple[float, int, float]]) -> dict[float, _Floats]:
    """F → the accuracies that survived, in rising order of F; every cell is there, empty or not."""
    factors: dict[float, float] = {}
    gathered: dict[float, dict[int, float]] = {}
    for point in points:
        try:
            factor, run, accuracy = point
        except (TypeError, ValueError):
            raise ArgumentError("points", "triples (tuning factor, seed, accuracy)", point, "give all three") from None
        factor = check_number("tuning_factor", factor, low=0, low_open=True, cure="leave out runs without weight decay")
        run = check_whole("seed", run, low=-(10**15), cure="number the seeds")
        # Nine digits tell any two cells apart and forgive a factor that was computed in two ways.
        cell = round(math.log2(factor), 9)
        factors[cell] = min(factor, factors.get(cell, factor))
        runs = gathered.setdefault(cell, {})
        if run in runs:
            raise ArgumentError("points", "one for each tuning factor and seed", tuple(point), "drop the second")
        runs[run] = _accuracy(accuracy)
    # Sorted, so that runs finished in another order give the same draws.
    return {
        factors[cell]: np.array([runs[run] for run in sorted(runs) if math.isfinite(runs[run])])
        for cell, runs in sorted(gathered.items())
    }


def _accuracy(value: Any) -> float:
    """A number, finite or not."""
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ArgumentError("accuracy", "a number", value, "give NaN for a run that was lost") from None


def _best(means: _Floats, errors: _Floats) -> NDArray[np.intp]:
    """The best cell of each row: by its mean less its standard error, so that no half-diverged cell wins by luck."""
    best: NDArray[np.intp] = np.argmax(means - errors, axis=1)
    return best


def _near(x: _Floats, best: NDArray[np.intp], step: float) -> NDArray[np.bool_]:
    """For each best cell the cells that its fit rests on: neighbours by their order, or by their distance."""
    by_order = np.abs(np.arange(len(x)) - best[:, None]) <= _REACH
    by_distance = np.abs(x - x[best][:, None]) <= _REACH * step * (1 + 1e-9)
    near: NDArray[np.bool_] = by_order | by_distance
    return near


def _solver(
    x: _Floats, means: _Floats, errors: _Floats, step: float
) -> tuple[NDArray[np.intp], NDArray[np.bool_], _Floats]:
    """The best cell of each row, the cells near it, and the matrix that takes the row to the cubic's coefficients."""
    rows = np.arange(len(means))
    best = _best(means, errors)
    near = _near(x, best, step)
    octaves = x - x[best][:, None]
    fall = means[rows, best][:, None] - means
    variance = errors**2 + (_MISFIT * fall) ** 2
    # Without noise the best cell would weigh without bound.
    variance = np.maximum(variance, 1e-6 * (near * variance).max(axis=1, keepdims=True) + np.finfo(float).tiny)
    unit = variance[rows, best]
    weights = near * unit[:, None] / variance
    bend = np.maximum((near * fall).sum(axis=1) / (near * octaves**2).sum(axis=1), 1e-150)
    powers = octaves[..., None] ** np.arange(4)
    weighted = np.swapaxes(weights[..., None] * powers, 1, 2)
    normal = weighted @ powers
    normal[:, 3, 3] += np.minimum(unit / (_SKEW * bend) ** 2, 1e12)
    return best, near, np.linalg.solve(normal, weighted)


def _ends(x: _Floats, step: float) -> tuple[float, float]:
    """How far a top may lie: half a step beyond the outermost cells, or half the way to a neighbour that is closer."""
    return float(x[0] - min(step, x[1] - x[0]) / 2), float(x[-1] + min(step, x[-1] - x[-2]) / 2)


def _tops(x: _Floats, means: _Floats, errors: _Floats, step: float) -> tuple[_Floats, _Floats]:
    """The top of each row of `means`, and the coefficients of 1, d, d², d³ about it.

    The top stays among the cells that were fitted; where they end the grid, between its ends.
    """
    best, near, solver = _solver(x, means, errors, step)
    value, slope, bend, skew = np.einsum("rik,rk->ir", solver, means)
    first, last = np.argmax(near, axis=1), len(x) - 1 - np.argmax(near[:, ::-1], axis=1)
    lowest, highest = _ends(x, step)
    low = np.where(first == 0, lowest, x[first]) - x[best]
    high = np.where(last == len(x) - 1, highest, x[last]) - x[best]
    # The root of slope + 2 bend d + 3 skew d² that is −slope / 2 bend without skew; where skew leaves no root, the
    # inflection point.
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        root = slope / (np.sqrt(np.maximum(bend**2 - 3 * slope * skew, 0.0)) - bend)
    # A curve that opens upwards has its top at the end towards which it climbs.
    top = np.where(bend < 0, np.clip(root, low, high), np.where(slope > 0, high, low))
    about = [
        value + top * (slope + top * (bend + top * skew)),
        slope + top * (2 * bend + 3 * top * skew),
        bend + 3 * top * skew,
        skew,
    ]
    return x[best] + top, np.stack(about, axis=1)


def _noises(
    x: _Floats, means: _Floats, values: list[_Floats], given: float | None, step: float
) -> tuple[_Floats, _Source, float]:
    """The standard deviation of one run in each cell, its source, and its degrees of freedom."""
    freedoms = np.array([len(accuracies) - 1.0 for accuracies in values])
    if freedoms.any():
        variances = np.array([accuracies.var(ddof=1) if len(accuracies) > 1 else 0.0 for accuracies in values])
        several = freedoms > 0
        # The median of the cells rather than their mean: one half-diverged cell must not decide for the others.
        # (1 − 2/(9ν))³ is Wilson and Hilferty's median of χ²/ν.
        typical = np.median(variances[several] / (1 - 2 / (9 * freedoms[several])) ** 3)
        pooled = (_PRIOR_FREEDOM * typical + freedoms * variances) / (_PRIOR_FREEDOM + freedoms)
        return np.sqrt(pooled), "seeds", _MEDIAN_EFFICIENCY * float(freedoms.sum())
    if given is not None:
        return np.full(len(x), given), "given", math.inf
    (near,) = _near(x, np.argmax(means[None], axis=1), step)
    freedom = int(near.sum()) - 3
    if freedom == 0:
        return np.zeros(len(x)), "nothing", 0.0
    parabola = np.polynomial.Polynomial.fit(x[near], means[near], 2)
    residuals = means[near] - parabola(x[near])
    return np.full(len(x), math.sqrt(residuals @ residuals / freedom)), "residuals", float(freedom)


def _draws(
    values: list[_Floats], noises: _Floats, freedom: float, rows: int, generator: np.random.Generator
) -> _Floats:
    """Deviations of the cells' means as other seeds might have had them, one set per row."""
    deviations = [
        (accuracies - accuracies.mean()) / scale
        for accuracies, scale in zip(values, noises, strict=True)
        if len(accuracies) > 1 and scale > 0
    ]
    pool = np.concatenate(deviations) if deviations else np.zeros(0)
    # Deviations from a cell's own mean are too small; in these units they have the variance 1 of the noise.
    size = math.sqrt(np.mean(pool**2)) if pool.any() else 0.0

    def mean_of(count: int) -> _Floats:
        drawn = generator.choice(pool, (rows, count)) / size if size else generator.standard_normal((rows, count))
        return np.asarray(drawn.mean(axis=1))

    means = np.stack([mean_of(len(accuracies)) for accuracies in values], axis=1) * noises
    if math.isinf(freedom):
        return means
    return np.asarray(means * np.sqrt(freedom / generator.chisquare(freedom, (rows, 1))))


def _losses(x: _Floats, means: _Floats, top: float, shape: np.polynomial.Polynomial) -> tuple[float, float]:
    """What F*/2 and 2F* lose: by the fit, and by how far the cells next to them lie off it."""
    off = means - shape(x - top)
    below, above = (float(shape(0.0) - shape(d) - np.interp(top + d, x, off)) for d in (-1.0, 1.0))
    return max(0.0, below), max(0.0, above)


def _edge(grid: _Floats, best: float, top: float) -> _Edge:
    """The end of the grid (log₂ F, lost cells included) at which the best cell or the top lies."""
    if best == grid[0] or top < grid[0]:
        return "low"
    return "high" if best == grid[-1] or top > grid[-1] else None


def _seeds_needed(x: _Floats, means: _Floats, errors: _Floats, seeds: float, half_width: float, step: float) -> int:
    """Seeds per cell with which the interval would be one step either way, `half_width` steps being what `seeds` give.

    The larger of two answers: the interval shrinks as 1/√seeds; and the delta method for x* = −b/2c, which alone knows
    a curve so flat that its interval has filled the grid. There the curvature's square is taken less its own variance,
    because noise alone looks like a top.
    """
    (best,), (near,), (solver,) = _solver(x, means[None], errors, step)
    _, slope, bend, _ = solver @ means
    covariance = (solver * errors**2) @ solver.T
    bend_sq = bend**2 - covariance[2, 2]
    if bend >= 0 or bend_sq <= 0:
        return MOST_SEEDS
    octaves = x[near] - x[best]
    top = float(np.clip(-slope / (2 * bend), octaves[0], octaves[-1]))
    gradient = np.array([0.0, 1.0, 2 * top, 3 * top**2])
    spread = math.sqrt(gradient @ covariance @ gradient / (4 * bend_sq)) / step
    return min(MOST_SEEDS, math.ceil(seeds * max(half_width, HALF_WIDTH * spread) ** 2))
