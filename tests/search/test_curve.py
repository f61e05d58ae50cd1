"""The top of one curve: exact without noise, unbiased and honest with it, and aware of edges, gaps and flatness."""

from __future__ import annotations

import math

import numpy as np
import pytest

from isogon.errors import ArgumentError
from isogon.search.fit._curve import LEVEL, MOST_SEEDS, fit_curve
from isogon.search.fit._grids import USUAL, default_grid

GRID = default_grid()
#: four standard errors of a share of `LEVEL` in 250 sets of runs, and 0.01 that the bootstrap is off
COVERAGE_ERROR = 4 * math.sqrt(LEVEL * (1 - LEVEL) / 250) + 0.01


def parabola(d):
    return 90 - 0.5 * d**2


def skew(d):
    """Falls faster above the top, as printed curves do: its cubic term is 0.23 of its quadratic one at the top."""
    return 90 - (np.exp(0.7 * d) - 1 - 0.7 * d)


def level(d):
    return 90 + 0 * d


def points(shape, top, *, noise=0.0, seeds=1, rng=None, grid=GRID):
    """Runs on `shape`, whose top is `top` octaves from the usual factor."""
    rng = rng or np.random.default_rng(0)
    return [
        (F, seed, float(shape(math.log2(F / USUAL) - top)) + noise * rng.standard_normal())
        for F in grid
        for seed in range(seeds)
    ]


def octaves(curve):
    return math.log2(curve.tuning_factor / USUAL)


def simulate(shape, *, noise, seeds, repeats=250, change=lambda runs: runs, grid=GRID):
    """Fits of `repeats` sets of runs with tops drawn within half an octave: errors, hits of the interval, curves."""
    rng = np.random.default_rng(7)
    errors, hits, curves = [], [], []
    for repeat in range(repeats):
        top = rng.uniform(-0.5, 0.5)
        runs = change(points(shape, top, noise=noise, seeds=seeds, rng=rng, grid=grid))
        curve = fit_curve(runs, seed=repeat, bootstrap=300)
        errors.append(octaves(curve) - top)
        hits.append(curve.interval[0] <= USUAL * 2**top <= curve.interval[1])
        curves.append(curve)
    return np.array(errors), np.mean(hits), curves


@pytest.mark.parametrize("top", [-1.3, -0.5, 0.0, 0.2, 1.49])
@pytest.mark.parametrize("seeds", [1, 3])
def test_exact_on_a_parabola(top, seeds):
    curve = fit_curve(points(parabola, top, seeds=seeds))
    assert octaves(curve) == pytest.approx(top, abs=1e-6)
    assert curve.height == pytest.approx(90)
    assert curve.curvature == pytest.approx(0.5)
    assert curve.losses == pytest.approx((0.5, 0.5))
    assert curve.accuracy(2 * curve.tuning_factor) == pytest.approx(89.5)
    assert np.log2(curve.interval) == pytest.approx(math.log2(USUAL) + top, abs=1e-5)
    assert (curve.edge, curve.flat, curve.seeds_needed) == (None, False, None)
    assert curve.noise == pytest.approx(0, abs=1e-9)


def test_exact_where_cells_are_missing_or_unevenly_spaced():
    grid = (0.01, 0.03, 0.05, 0.1, 0.15, 0.4)
    runs = [(F, 0, 80 - 2 * math.log2(F / 0.08) ** 2) for F in grid]
    assert fit_curve(runs).tuning_factor == pytest.approx(0.08)
    runs[3] = (0.1, 0, math.nan)
    curve = fit_curve(runs)
    assert curve.tuning_factor == pytest.approx(0.08)
    assert math.isnan(curve.means[3])
    assert curve.counts == (1, 1, 1, 0, 1, 1)


@pytest.mark.parametrize(("seeds", "noise"), [(2, 0.3), (3, 0.3), (3, 1.0)])
def test_unbiased_and_honest_on_a_noisy_parabola(seeds, noise):
    errors, coverage, curves = simulate(parabola, noise=noise, seeds=seeds)
    assert abs(errors.mean()) < 4 * errors.std() / math.sqrt(len(errors)) + 0.01
    assert coverage == pytest.approx(LEVEL, abs=COVERAGE_ERROR)
    # The median of a root mean square over seven or more degrees of freedom is 0.95 of it; four errors of that median.
    assert np.median([curve.noise for curve in curves]) == pytest.approx(0.95 * noise, rel=0.2)
    # The reported spread is the one of the errors; with two seeds it is 1.3 times that, over eight samples ± 0.06.
    assert 1 / 1.6 < np.median([curve.spread for curve in curves]) / errors.std() < 1.6


@pytest.mark.parametrize(("seeds", "noise"), [(2, 0.3), (3, 0.1), (3, 0.6)])
def test_honest_on_a_skew_curve(seeds, noise):
    errors, coverage, _ = simulate(skew, noise=noise, seeds=seeds)
    # A parabola through five cells is 0.2 to 0.3 octaves low even without noise.
    error = 4 * errors.std() / math.sqrt(len(errors))
    assert -0.25 - error < errors.mean() < 0.05 + error
    assert coverage == pytest.approx(LEVEL, abs=COVERAGE_ERROR)


def test_skew_curve_without_noise():
    curve = fit_curve(points(skew, 0.0, seeds=3))
    assert abs(octaves(curve)) < 0.05
    assert curve.losses == pytest.approx((90 - skew(-1), 90 - skew(1)), abs=0.05)


def test_losses_are_those_of_the_cells_even_off_the_fit():
    """A tent is no parabola, but symmetric: its top is found, and the cells at F*/2 and 2F* give the losses."""
    curve = fit_curve(points(lambda d: 90 - abs(d), 0.0, seeds=1), noise=0.3)
    assert octaves(curve) == pytest.approx(0, abs=1e-6)
    assert curve.losses == pytest.approx((curve.height - 89,) * 2)
    assert abs(curve.losses[1] - curve.curvature) > 0.05


def test_a_curve_that_opens_upwards_has_its_top_at_an_end():
    for means, edge, top in (((90, 88, 87.5), "low", -1.5), ((88, 88.3, 90), "high", 1.5)):
        curve = fit_curve([(F, 0, mean) for F, mean in zip(GRID[2:5], means, strict=True)])
        assert (curve.edge, octaves(curve)) == (edge, pytest.approx(top))
        assert curve.curvature < 0


def test_single_runs_take_their_noise_from_the_residuals():
    _, coverage, curves = simulate(parabola, noise=0.3, seeds=1)
    assert coverage > LEVEL - COVERAGE_ERROR
    assert {curve.noise_from for curve in curves} == {"residuals"}
    assert np.sqrt(np.mean([curve.noise**2 for curve in curves])) == pytest.approx(0.3, rel=0.15)


def test_a_given_noise_serves_single_runs_only():
    single = fit_curve(points(parabola, 0, noise=0.1), noise=0.4)
    assert (single.noise_from, single.noise) == ("given", pytest.approx(0.4))
    several = fit_curve(points(parabola, 0, noise=0.1, seeds=3), noise=0.4)
    assert several.noise_from == "seeds"
    assert several.noise < 0.2
    # Twice the noise, twice the interval.
    wider = fit_curve(points(parabola, 0, noise=0.1), noise=0.8)
    assert wider.spread == pytest.approx(2 * single.spread, rel=0.25)


def test_three_single_runs_know_nothing_of_their_noise():
    curve = fit_curve(points(parabola, 0.1, grid=GRID[2:5]))
    assert octaves(curve) == pytest.approx(0.1, abs=1e-6)
    assert curve.noise_from == "nothing"
    assert np.log2(curve.interval) - math.log2(curve.tuning_factor) == pytest.approx([-1, 1])
    assert (curve.flat, curve.seeds_needed) == (False, None)


@pytest.mark.parametrize("lost", [2, 3, 4, 5])
def test_one_lost_cell_does_no_harm(lost):
    def lose(runs):
        return [(factor, seed, math.nan if factor == GRID[lost] else accuracy) for factor, seed, accuracy in runs]

    errors, coverage, curves = simulate(skew, noise=0.2, seeds=3, repeats=120, change=lose)
    assert np.sqrt(np.mean(errors**2)) < 0.35
    assert coverage > LEVEL - 0.08
    assert all(curve.counts[lost] == 0 and curve.edge is None for curve in curves)


def test_a_half_diverged_cell_does_little_harm():
    """Two steps above the usual factor one seed of three ends at 10 %: its cell must neither pull nor speak for all."""

    def spoil(runs):
        return [
            (factor, seed, 10.0 if factor == GRID[5] and seed == 0 else accuracy) for factor, seed, accuracy in runs
        ]

    errors, coverage, curves = simulate(skew, noise=0.2, seeds=3, repeats=120, change=spoil)
    assert np.sqrt(np.mean(errors**2)) < 0.4
    assert coverage > LEVEL - 0.08
    assert np.median([curve.noise for curve in curves]) < 0.3
    assert np.mean([curve.flat for curve in curves]) < 0.05


def test_a_wild_cell_does_not_win_by_luck():
    runs = points(parabola, 0, noise=0.1, seeds=3)
    wild = [
        (factor, seed, 90.3 + 12 * (seed - 1) if factor == GRID[6] else accuracy) for factor, seed, accuracy in runs
    ]
    assert np.nanargmax(fit_curve(wild).means) == 6
    assert abs(octaves(fit_curve(wild))) < 0.3


def test_a_cell_with_one_surviving_seed_weighs_less():
    """The same error of a mean pulls the top less where fewer seeds stand behind it."""
    plain = points(parabola, 0, noise=0.3, seeds=8)
    single = [(factor, s, (90.3 if s == 0 else math.nan) if factor == GRID[4] else a) for factor, s, a in plain]
    all_eight = [(factor, s, 90.3 if factor == GRID[4] else a) for factor, s, a in plain]
    assert octaves(fit_curve(single)) < octaves(fit_curve(all_eight)) - 0.05


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_level_curves_are_called_flat(seeds):
    _, _, curves = simulate(level, noise=0.5, seeds=seeds, repeats=200)
    assert np.mean([curve.flat for curve in curves]) > 0.85
    assert np.median([curve.seeds_needed or 0 for curve in curves]) == MOST_SEEDS


@pytest.mark.parametrize("seeds", [1, 3])
@pytest.mark.parametrize("noise", [None, 0.0])
def test_accuracies_that_are_all_the_same_are_flat(seeds, noise):
    """A task that every run solves: neither the top nor an edge is known."""
    grid = [0.0125 * 2**octave for octave in range(7)]
    curve = fit_curve([(factor, seed, 1.0) for factor in grid for seed in range(seeds)], noise=noise)
    assert (curve.flat, curve.edge, curve.seeds_needed) == (True, None, MOST_SEEDS)
    assert curve.interval[0] < grid[0]
    assert curve.interval[1] > grid[-1]
    assert curve.tuning_factor == pytest.approx(0.1)
    assert curve.losses == pytest.approx((0, 0))


@pytest.mark.parametrize(("shape", "noise"), [(parabola, 0.6), (skew, 0.3)])
def test_clear_tops_are_not_called_flat(shape, noise):
    _, _, curves = simulate(shape, noise=noise, seeds=3)
    assert np.mean([curve.flat for curve in curves]) < 0.02


@pytest.mark.parametrize(("shape", "noise"), [(parabola, 2.0), (skew, 1.0)])
def test_the_seeds_suggested_are_enough(shape, noise):
    _, _, few = simulate(shape, noise=noise, seeds=2, repeats=150)
    asked = [curve.seeds_needed for curve in few if curve.seeds_needed is not None]
    assert len(asked) > 75
    seeds = math.ceil(np.median(asked))
    # Over seven samples 7 to 14 seeds, and widths of 1.12 to 1.51 octaves, of which the aim allows 2.
    assert 2 < seeds < 25
    _, _, enough = simulate(shape, noise=noise, seeds=seeds, repeats=80)
    widths = [math.log2(curve.interval[1] / curve.interval[0]) for curve in enough]
    assert 0.8 < np.median(widths) < 2.2


@pytest.mark.parametrize(
    ("top", "edge"), [(-4.0, "low"), (-2.8, "low"), (-2.3, None), (2.3, None), (2.8, "high"), (4.0, "high")]
)
def test_a_top_outside_the_grid_is_an_edge(top, edge):
    curve = fit_curve(points(parabola, top, noise=0.02, seeds=3))
    assert curve.edge == edge
    assert -3.5 - 1e-9 <= octaves(curve) <= 3.5 + 1e-9


def test_divergence_beyond_the_best_cell_is_no_edge():
    runs = [
        (factor, s, math.nan if factor > GRID[4] else a) for factor, s, a in points(parabola, 1.2, noise=0.05, seeds=3)
    ]
    curve = fit_curve(runs)
    assert curve.edge is None
    assert octaves(curve) <= 1.5 + 1e-9


def test_the_unit_of_accuracy_and_of_the_factor_do_not_matter():
    runs = points(skew, 0.2, noise=0.3, seeds=3)
    curve = fit_curve(runs)
    as_parts = fit_curve([(F, seed, accuracy / 100) for F, seed, accuracy in runs])
    assert as_parts.tuning_factor == pytest.approx(curve.tuning_factor)
    assert as_parts.interval == pytest.approx(curve.interval)
    assert as_parts.curvature == pytest.approx(curve.curvature / 100)
    elsewhere = fit_curve([(3 * F, seed, accuracy) for F, seed, accuracy in runs])
    assert np.array(elsewhere.interval) == pytest.approx(3 * np.array(curve.interval))


def test_the_grid_is_what_was_given():
    curve = fit_curve([*points(parabola, 0), *((F * (1 + 1e-12), 1, 89.0) for F in GRID)])
    assert curve.grid == GRID
    assert curve.counts == (2,) * 7


def test_the_order_of_runs_does_not_matter_and_the_seed_does():
    runs = points(skew, 0.2, noise=0.3, seeds=3)
    shuffled = [runs[i] for i in np.random.default_rng(3).permutation(len(runs))]
    assert fit_curve(shuffled) == fit_curve(runs)
    assert fit_curve(runs, seed=1).interval != fit_curve(runs).interval


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ([], "three tuning factors or more, got '0 of 0'"),
        ([(0.1, 0, 90.0), (0.2, 0, 91.0), (0.4, 0, math.nan)], "three tuning factors or more, got '2 of 3'"),
        ([(0.1, 0)], "triples"),
        ([(0.0, 0, 90.0)], "tuning_factor must be a finite number above 0"),
        ([(0.1, 0.5, 90.0)], "seed must be a whole number"),
        ([(0.1, 0, "good")], "accuracy must be a number"),
        ([(0.1, 0, 90.0), (0.1, 0, 91.0)], "one for each tuning factor and seed"),
    ],
)
def test_bad_points_are_refused_in_one_sentence(runs, message):
    with pytest.raises(ArgumentError, match=message) as caught:
        fit_curve(runs)
    assert str(caught.value).count(". ") == 0


def test_bad_settings_are_refused():
    with pytest.raises(ArgumentError, match="noise"):
        fit_curve(points(parabola, 0), noise=-1)
    with pytest.raises(ArgumentError, match="bootstrap"):
        fit_curve(points(parabola, 0), bootstrap=0)
    with pytest.raises(ArgumentError, match="seed"):
        fit_curve(points(parabola, 0), seed=-1)


def test_infinite_accuracy_is_a_lost_run():
    runs = points(parabola, 0)
    assert fit_curve([*runs[:-1], (runs[-1][0], 0, math.inf)]).counts[-1] == 0


def test_equal_accuracies_have_no_top():
    curve = fit_curve(points(level, 0, seeds=2), noise=0.1)
    assert math.isfinite(curve.tuning_factor)
    noisy = fit_curve(points(level, 0), noise=0.1)
    assert noisy.flat
    assert noisy.seeds_needed == MOST_SEEDS
