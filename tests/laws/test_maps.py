"""Norm maps, identities of norm growth, equivalent forms and toys."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isogon.errors import ArgumentError
from isogon.theory import equilibrium, maps


def noisy(levels, seed=0):
    """Wan et al.'s noise on L_t: uniform in (−3, 3)."""
    return levels + np.random.default_rng(seed).uniform(-3, 3, len(levels))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_norm_maps_converge_to_the_stated_equilibrium(momentum):
    """Figures 4 and 5: η = 0.1, λ = 1e-3, x₀ = 10; the map's own fixed point is the theorem's to second order."""
    args = {"lr": 0.1, "weight_decay": 1e-3}
    levels = np.full(60_000, 10.0)
    if momentum:
        norm_sq = maps.sgdm_norm_map(10.0, levels, momentum=momentum, **args)[-1, 0]
    else:
        norm_sq = maps.sgd_norm_map(10.0, levels, **args)[-1]
    star = equilibrium.equilibrium_norm("sgd", momentum=momentum, unit_grad_sq=10.0, **args)
    assert norm_sq == pytest.approx(star**2, rel=1e-4)


def test_the_momentum_map_has_the_laws_angle():
    state = maps.sgdm_norm_map(10.0, np.full(60_000, 10.0), lr=0.1, weight_decay=1e-3, momentum=0.9)[-1]
    assert 1 - state[1] / np.sqrt(state[0] * state[2]) == pytest.approx(1e-4 / 1.9, rel=1e-6)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_norms_follow_a_target_that_moves_slowly(momentum):
    steps = 200_000
    levels = 10 + 3 * np.sin(np.linspace(0, 4 * np.pi, steps))
    args = {"lr": 0.1, "weight_decay": 1e-3}
    if momentum:
        path = maps.sgdm_norm_map(10.0, noisy(levels), momentum=momentum, **args)[1:, 0]
    else:
        path = maps.sgd_norm_map(10.0, noisy(levels), **args)[1:]
    target = np.sqrt(levels * 0.1 / (2e-3 * (1 - momentum)))
    late = slice(steps // 4, None)
    np.testing.assert_allclose(path[late], target[late], rtol=0.1)
    lag = np.mean(np.abs(path[late] / target[late] - 1))
    assert lag < (0.05 if momentum == 0 else 0.02)  # momentum follows faster


def test_maps_want_one_value_a_step():
    with pytest.raises(ArgumentError, match="unit_grad_sq must be one value per step"):
        maps.sgd_norm_map(1.0, [[1.0]], lr=0.1, weight_decay=0.1)


def scale_invariant_gradient(matrix):
    """∇ of w ↦ w·Aw/‖w‖²."""

    def gradient(w):
        square = np.sum(w**2, axis=-1, keepdims=True)
        product = w @ matrix
        return 2 * (product - np.sum(w * product, axis=-1, keepdims=True) / square * w) / square

    return gradient


def random_loss(seed, dim=6):
    rng = np.random.default_rng(seed)
    matrix = rng.standard_normal((dim, dim))
    return scale_invariant_gradient(matrix + matrix.T), rng.standard_normal(dim)


@given(seed=st.integers(0, 10**6), momentum=st.floats(0, 0.95), lr=st.floats(0.01, 0.5))
def test_norm_growth_is_an_identity(seed, momentum, lr):
    """Theorem C.1 with its signs corrected, on any scale-invariant loss, from any two first points."""
    gradient, w = random_loss(seed)
    before = w + 0.1 * np.random.default_rng(seed + 1).standard_normal(w.shape)
    path = [before, w]
    for _ in range(30):
        now, last = path[-1], path[-2]
        path.append(now + momentum * (now - last) - lr * gradient(now))
    path = np.array(path)
    norm_sq, updates = np.sum(path**2, axis=1), np.sum(np.diff(path, axis=0) ** 2, axis=1)
    grown = maps.grown_norm_sq(updates, momentum=momentum, initial=norm_sq[1], before_initial=norm_sq[0])
    np.testing.assert_allclose(grown, norm_sq[2:], rtol=1e-9)
    # the closed form of the statement, summed as it is written
    t = len(updates) - 2
    weights = (1 - momentum ** (t - np.arange(t + 1) + 1.0)) / (1 - momentum)
    closed = norm_sq[1] + np.sum(weights * (updates[1:] + momentum * updates[:-1]))
    closed += momentum * (1 - momentum ** (t + 1)) / (1 - momentum) * (norm_sq[1] - norm_sq[0])
    assert grown[-1] == pytest.approx(closed, rel=1e-9)
    least = maps.least_growth(np.arange(t + 1), momentum=momentum, first_growth=norm_sq[1] - norm_sq[0])
    assert np.all(np.diff(norm_sq)[1:] >= least - 1e-9)


def test_growth_wants_the_update_before_the_first():
    with pytest.raises(ArgumentError, match="update_sq"):
        maps.grown_norm_sq([1.0], momentum=0.9, initial=1.0)


def test_updates_and_norms_balance_over_time():
    """Theorem C.2: mean ‖update‖² = 2ηλ/(1+μ) · mean ‖w‖², with noise or, as here, without any."""
    gradient, w = random_loss(3)
    args = {"lr": 0.3, "weight_decay": 0.05, "momentum": 0.6}
    path = maps.heavy_ball(gradient, w, steps=60_000, **args)[2000:]
    updates, norms = np.sum(np.diff(path, axis=0) ** 2, axis=1), np.sum(path**2, axis=1)
    assert np.mean(updates) / np.mean(norms) == pytest.approx(maps.mean_update_ratio(**args), rel=0.01)


@given(seed=st.integers(0, 10**6), momentum=st.floats(0, 0.95), lr=st.floats(0.01, 2))
def test_only_the_intrinsic_rate_matters(seed, momentum, lr):
    gradient, w = random_loss(seed)
    path = maps.heavy_ball(gradient, w, lr=lr, weight_decay=0.02, momentum=momentum, steps=15)
    start, unit_lr, decay = maps.unit_rate_form(w, lr=lr, weight_decay=0.02)
    unit = maps.heavy_ball(gradient, start, lr=unit_lr, weight_decay=decay, momentum=momentum, steps=15)
    np.testing.assert_allclose(unit * np.sqrt(lr), path, rtol=1e-6, atol=1e-9)


def test_a_batch_is_many_single_samples():
    """Variance and decay over one step at (B, η) are those over B steps at (1, η/B), to first order."""
    lr, batch, wd = 1e-3, 16, 0.1
    single_lr, steps = maps.single_sample_form(lr=lr, batch_size=batch)
    # noise variance η²Σ/B against B·(η/B)²Σ, shrinking 1 − ηλ against (1 − ηλ/B)^B
    assert lr**2 / batch == pytest.approx(steps * single_lr**2)
    assert 1 - lr * wd == pytest.approx((1 - single_lr * wd) ** steps, rel=1e-8)


def test_gradient_descent_with_decay_is_chaotic_near_the_optimum():
    """Figure 5a: η = 0.1, λ = 0.5; two starts 1e-9 apart end far apart, and without decay they do not."""
    starts = np.array([[0.1, 1.0], [0.1 + 1e-9, 1.0]])

    def distance(weight_decay):
        path = maps.heavy_ball(maps.ratio_gradient, starts, lr=0.1, weight_decay=weight_decay, steps=2000)
        angle = np.arctan2(path[..., 0], np.abs(path[..., 1]))
        return np.abs(angle[:, 0] - angle[:, 1]).max(), path

    chaotic, path = distance(0.5)
    calm, calm_path = distance(0.0)
    assert chaotic > 0.1
    assert calm < 1e-6
    losses = maps.ratio_loss(path[:, 0])
    assert losses.min() < 1e-6  # it comes to the optimum again and again,
    assert losses[-1000:].max() > 0.01  # and is thrown out of it
    assert maps.ratio_loss(calm_path[-1]).max() < 1e-6


def test_the_toys_gradient_is_its_gradient():
    w = np.array([0.3, -0.8])
    numeric = [(maps.ratio_loss(w + step) - maps.ratio_loss(w - step)) / 2e-6 for step in 1e-6 * np.eye(2)]
    np.testing.assert_allclose(maps.ratio_gradient(w), numeric, rtol=1e-6)


@functools.cache
def cone(case, seed=0, steps=6000):
    return maps.logistic_cone(case, dim=10, batch_size=1000, lr=0.1, weight_decay=0.05, steps=steps, seed=seed)


def test_decay_or_normalisation_alone_settles_and_both_do_not():
    late = {case: cone(case).angle[-2000:] for case in ("decay", "normalised", "both")}
    assert late["decay"].max() < 0.02
    assert late["normalised"].max() < 0.03
    assert late["both"].max() > 0.1
    # the error is angle/π, and the norm has settled while the direction has not
    both = cone("both")
    assert both.error[-1] == pytest.approx(both.angle[-1] / np.pi)
    assert both.norm[-1000:].std() / both.norm[-1000:].mean() < 0.5


def test_normalisation_alone_only_grows_the_norm():
    assert np.all(np.diff(cone("normalised", steps=500).norm) >= -1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_the_cone_is_left_within_the_theorems_time(seed):
    """Theorem 3.1 from ten different steps; ε = 0.04 < √(ηλ/2)."""
    run = cone("both", seed=seed)
    for start in range(1000, 4000, 300):
        bound = maps.cone_escape_steps(
            lr=0.1, weight_decay=0.05, cone=0.04, norm_sq=run.norm[start] ** 2, batch_size=1000, dim=10
        )
        assert run.angle[start : start + int(bound) + 1].max() > 0.04


def test_a_wide_cone_is_outside_the_theorem():
    with pytest.raises(ArgumentError, match=r"cone must be below .* 0\.05"):
        maps.cone_escape_steps(lr=0.1, weight_decay=0.05, cone=0.06, norm_sq=1, batch_size=1, dim=10)
