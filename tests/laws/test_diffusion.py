"""The diffusion of Li, Lyu and Arora: closed forms against its simulator, and both against SGD itself."""

from __future__ import annotations

import numpy as np
import pytest

from isogon.errors import ArgumentError
from isogon.theory import diffusion
from isogon.theory.motion import law


def test_gamma_follows_its_closed_form():
    args = {"lr": 0.1, "weight_decay": 0.02, "noise_trace": 1.5}
    paths = diffusion.simulate(dim=20, paths=50, steps=1000, initial_norm=0.7, record_every=100, **args)
    expected = diffusion.inverse_square_rate(paths.time, initial=(0.49 / 0.1) ** 2, intrinsic_lr=0.002, noise_trace=1.5)
    np.testing.assert_allclose(paths.inverse_square_rate.mean(axis=1), expected, rtol=0.01)


def test_the_simulator_is_of_first_order_in_dt():
    """Halving dt halves the error of γ against the closed form: fit the exponent."""
    errors = []
    for dt in (8.0, 4.0, 2.0, 1.0):
        paths = diffusion.simulate(
            dim=2, paths=1, steps=int(64 / dt), dt=dt, lr=0.1, weight_decay=0.1, noise_trace=1.0, initial_norm=1.0
        )
        exact = diffusion.inverse_square_rate(64, initial=100.0, intrinsic_lr=0.01, noise_trace=1.0)
        errors.append(abs(paths.inverse_square_rate[-1, 0] - exact))
    order = np.polyfit(np.log2([8, 4, 2, 1]), np.log2(errors), 1)[0]
    assert order == pytest.approx(1, abs=0.15)


def test_gamma_is_what_sgd_does():
    """‖w‖⁴/η² of discrete SGD on scale-invariant noise, which knows nothing of the diffusion."""
    rng = np.random.default_rng(1)
    lr, wd, trace, dim, paths = 0.1, 0.02, 1.0, 50, 400
    w = rng.standard_normal((paths, dim))
    w *= 0.8 / np.linalg.norm(w, axis=1, keepdims=True)
    times, means = [0], [0.8**4 / lr**2]
    for step in range(1, 801):
        size = np.linalg.norm(w, axis=1, keepdims=True)
        noise = rng.standard_normal(w.shape) * np.sqrt(trace / (dim - 1))
        noise -= np.sum(noise * w, axis=1, keepdims=True) * w / size**2
        w = (1 - lr * wd) * w - lr * noise / size
        if step % 100 == 0:
            times.append(step)
            means.append(np.mean(np.linalg.norm(w, axis=1) ** 4) / lr**2)
    expected = diffusion.inverse_square_rate(times, initial=means[0], intrinsic_lr=lr * wd, noise_trace=trace)
    np.testing.assert_allclose(means, expected, rtol=0.02)


def test_without_weight_decay_gamma_grows_in_a_straight_line():
    values = diffusion.inverse_square_rate([0, 1, 2], initial=5.0, intrinsic_lr=0, noise_trace=3.0)
    np.testing.assert_allclose(values, [5, 11, 17])


def test_the_effective_rate_settles():
    late = diffusion.inverse_square_rate(1e9, initial=5.0, intrinsic_lr=1e-4, noise_trace=2.0)
    rate = diffusion.stationary_effective_lr(intrinsic_lr=1e-4, noise_trace=2.0)
    assert float(late) ** -0.5 == pytest.approx(rate)
    assert rate == pytest.approx(np.sqrt(2 * 1e-4 / 2.0))


def test_directions_forget_at_the_rate_of_the_law():
    """In equilibrium the diffusion's direction decorrelates like SGD's: ρ(t) = e^(−xt)."""
    lr, wd = 0.1, 0.05
    star = (lr / (2 * wd)) ** 0.25
    paths = diffusion.simulate(
        dim=100, paths=1000, steps=300, lr=lr, weight_decay=wd, noise_trace=1.0, initial_norm=star, record_every=50
    )
    cosines = np.mean(np.sum(paths.direction[0] * paths.direction, axis=-1), axis=1)
    expected = law("sgd", lr=lr, weight_decay=wd, momentum=0).correlation(paths.time)
    np.testing.assert_allclose(cosines, expected, atol=0.01)


def test_a_loss_pulls_the_directions_down_and_noise_may_depend_on_them():
    """On L = w̄₁² without noise near its minimum, gradient flow on the sphere drives w̄₁ to 0."""

    def gradient(unit):
        out = np.zeros_like(unit)
        out[:, 0] = 2 * unit[:, 0]
        return out

    calls = []

    def trace(unit):
        calls.append(unit.shape)
        return 1e-8 * (1 + unit[:, 0] ** 2)

    paths = diffusion.simulate(
        dim=3, paths=200, steps=300, lr=0.1, weight_decay=0.0, noise_trace=trace, gradient=gradient, record_every=300
    )
    assert np.abs(paths.direction[-1, :, 0]).max() < 1e-3
    assert calls[0] == (200, 3)
    np.testing.assert_allclose(np.linalg.norm(paths.direction, axis=-1), 1)


def test_noise_of_ones_own_is_projected():
    """Noise along one axis only moves directions that are not on that axis."""
    start = np.eye(3)[:2]

    def along_first_axis(_unit, normals):
        return normals * np.array([1.0, 0.0, 0.0])

    paths = diffusion.simulate(
        dim=3,
        paths=2,
        steps=1,
        lr=0.1,
        weight_decay=0.1,
        noise_trace=1.0,
        noise_root=along_first_axis,
        initial_direction=start,
    )
    np.testing.assert_allclose(paths.direction[-1, 0], start[0])
    assert abs(paths.direction[-1, 1, 0]) > 1e-3


def test_same_seed_same_paths():
    args = {"dim": 4, "paths": 3, "steps": 5, "lr": 0.1, "weight_decay": 0.1, "noise_trace": 1.0}
    first, again, other = (diffusion.simulate(**args, seed=seed).direction for seed in (3, 3, 4))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_a_step_too_long_is_refused():
    with pytest.raises(ArgumentError, match="dt must be small enough"):
        diffusion.simulate(dim=2, paths=1, steps=2, lr=1.0, weight_decay=2.0, noise_trace=1e-9)
