"""The two-pole law against simulated gradient noise, and its arithmetic against 60 digits."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isogon.errors import ArgumentError
from isogon.theory import OPTIMIZERS, law

LAGS = (1, 3, 10, 30, 100, 300)


def noise_process(optimizer, x, momentum, beta2, shape, rng):
    """Unit vectors of a weight that only scale-invariant gradient noise and weight decay move: η = x, λ = 1."""
    size = int(np.prod(shape))
    w = rng.standard_normal(shape)
    coupled = optimizer in ("sgd", "nesterov")
    start_sq = np.sqrt(x / (2 * (1 - momentum))) if coupled else x * size / 2
    if optimizer == "muon":
        start_sq = x * min(shape) / 2
    w *= np.sqrt(start_sq) / np.linalg.norm(w)
    buffer, square, step = np.zeros(shape), np.zeros(shape), 0
    while True:
        norm = np.linalg.norm(w)
        unit = w / norm
        noise = rng.standard_normal(shape) / np.sqrt(size)
        g = (noise - np.sum(noise * unit) * unit) / norm
        step += 1
        if coupled:
            g = g + w
            buffer = momentum * buffer + g
            w = w - x * (g + momentum * buffer if optimizer == "nesterov" else buffer)
        elif optimizer == "adamw":
            buffer = momentum * buffer + (1 - momentum) * g
            square = beta2 * square + (1 - beta2) * g * g
            update = buffer / (1 - momentum**step) / np.sqrt(square / (1 - beta2**step))
            w = (1 - x) * w - x * update
        elif optimizer == "lion":
            update = np.sign(momentum * buffer + (1 - momentum) * g)
            buffer = beta2 * buffer + (1 - beta2) * g
            w = (1 - x) * w - x * update
        else:  # muon as PyTorch has it: Nesterov on an exponential average, then the nearest orthogonal matrix
            buffer = momentum * buffer + (1 - momentum) * g
            left, _, right = np.linalg.svd((1 - momentum) * g + momentum * buffer, full_matrices=False)
            w = (1 - x) * w - x * (left @ right)
        yield w / np.linalg.norm(w)


def measure_decorrelation(process, burn_in, steps, every=5):
    """Mean of 1 − cos between directions LAGS steps apart."""
    for _ in range(burn_in):
        next(process)
    past = deque(maxlen=max(LAGS) + 1)
    sums, counts = np.zeros(len(LAGS)), np.zeros(len(LAGS))
    for step in range(steps):
        past.appendleft(next(process))
        if step % every:
            continue
        for index, lag in enumerate(LAGS):
            if lag < len(past):
                sums[index] += np.sum((past[0] - past[lag]) ** 2) / 2
                counts[index] += 1
    return sums / counts


@pytest.mark.parametrize(
    ("optimizer", "x", "momentum", "beta2"),
    [
        ("sgd", 0.01, 0.0, None),
        ("sgd", 1e-3, 0.9, None),
        ("sgd", 8e-3, 0.9, None),  # underdamped: complex poles
        ("nesterov", 1e-3, 0.9, None),
        ("nesterov", 4e-3, 0.9, None),  # underdamped
        ("adamw", 2e-3, 0.9, 0.98),
        ("lion", 2e-3, 0.9, 0.99),
        ("lion", 2e-3, 0.95, 0.98),  # signs alike enough for the arcsine to matter
    ],
)
def test_the_law_holds_for_gradient_noise(optimizer, x, momentum, beta2):
    process = noise_process(optimizer, x, momentum, beta2, (6000,), np.random.default_rng(0))
    measured = measure_decorrelation(process, burn_in=1500, steps=6000)
    predicted = law(optimizer, lr=x, weight_decay=1.0, momentum=momentum, beta2=beta2).decorrelation(LAGS)
    np.testing.assert_allclose(measured, predicted, rtol=0.01)


def test_muon_is_near_its_law_and_says_so():
    process = noise_process("muon", 2e-3, 0.95, None, (40, 40), np.random.default_rng(0))
    measured = measure_decorrelation(process, burn_in=1000, steps=3000)
    motion = law("muon", lr=2e-3, weight_decay=1.0, momentum=0.95)
    assert motion.approximate
    ratio = measured / motion.decorrelation(LAGS)
    assert 0.9 < ratio[0] < 1.45  # the square of 1.17 … 1.20 for square matrices, momentum or not
    assert ratio[-2:] == pytest.approx(1, abs=0.05)


def exact_angle(optimizer, x, momentum, lag):
    """The law as the theory states it, in 60 digits."""
    mpmath = pytest.importorskip("mpmath")
    with mpmath.workdps(60):
        x, mu = mpmath.mpf(x), mpmath.mpf(momentum)
        if optimizer == "adamw":
            p, q = 1 - x, mu
            first = (p + q) / (1 + p * q)
        else:
            heavy = optimizer == "sgd"
            total = 1 + mu - x if heavy else (1 + mu) * (1 - x)
            product = mu if heavy else mu * (1 - x)
            root = mpmath.sqrt(mpmath.mpc(total**2 - 4 * product))
            p, q = (total + root) / 2, (total - root) / 2
            turned = 1 + 2 * mu - 2 * mu**3 + mu * (1 + mu) * (1 + 2 * mu) * x
            first = 1 - (x / (1 + mu) if heavy else x * turned / ((1 + mu) + mu * (1 + 2 * mu) * x))
        cosine = ((first - q) * p**lag + (p - first) * q**lag) / (p - q)
        return float(mpmath.acos(mpmath.re(cosine)))


@pytest.mark.parametrize("optimizer", ["sgd", "nesterov", "adamw"])
@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("x", [1e-12, 1e-9, 1e-6, 1e-4, 1e-2, 0.3, 1.2])
def test_angles_keep_their_digits(optimizer, momentum, x):
    lags = [1, 2, 64, 65, 1000, 10**6, 10**9]
    angles = law(optimizer, lr=1.0, weight_decay=x, momentum=momentum).angle(lags)
    expected = [exact_angle(optimizer, x, momentum, lag) for lag in lags]
    np.testing.assert_allclose(angles, expected, rtol=1e-12)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_tiny_rates_give_tiny_angles(optimizer):
    """Δ² is proportional to x for small x, so angle(1) must scale exactly as √x down to 1e-13."""
    tiny, small = (law(optimizer, lr=1.0, weight_decay=x).angle(1) for x in (1e-13, 1e-12))
    assert small / tiny == pytest.approx(10**0.5, rel=1e-9)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_correlation_starts_at_one_and_forgets(optimizer):
    motion = law(optimizer, lr=0.1, weight_decay=1e-3)
    assert motion.correlation(0) == 1
    assert motion.correlation(1e9) == pytest.approx(0, abs=1e-12)
    p = motion.poles[0]
    ratio = motion.correlation(3_001) / motion.correlation(3_000)
    assert ratio == pytest.approx(p, rel=1e-6)
    assert motion.timescale == pytest.approx(-1 / np.log(p))


def test_the_papers_numbers():
    """Wan et al.'s 6.32e-3 and 4.59e-3 rad per step, Yun et al.'s 0.39 rad per epoch, Li and Arora's growth 1.481."""
    assert law("sgd", lr=0.2, weight_decay=1e-4, momentum=0).angle(1) == pytest.approx(6.32e-3, rel=1e-3)
    assert law("sgd", lr=0.2, weight_decay=1e-4, momentum=0.9).angle(1) == pytest.approx(4.59e-3, rel=1e-3)
    assert law("sgd", lr=0.1, weight_decay=2e-4).angle(50_000 / 128) == pytest.approx(0.39, abs=0.005)
    assert law("sgd", lr=0.1, weight_decay=5e-4).poles[0] ** (-2 * 391) == pytest.approx(1.481, abs=0.0005)


def test_a_lag_between_two_steps_is_between_them():
    motion = law("sgd", lr=0.1, weight_decay=1e-3)
    low, middle, high = motion.decorrelation([10, 10.25, 11])
    assert middle == pytest.approx(0.75 * low + 0.25 * high)


def test_arrays_keep_their_shape_and_scalars_stay_scalar():
    motion = law("adamw", lr=1e-3, weight_decay=0.1)
    assert motion.angle(np.ones((2, 3))).shape == (2, 3)
    assert motion.angle(7).shape == ()


@pytest.mark.parametrize(("optimizer", "bound"), [("sgd", (1 - 0.9**0.5) ** 2), ("nesterov", (0.1 / 1.9) ** 2)])
def test_underdamped_motion_is_flagged_with_its_bound(optimizer, bound):
    over, under = (law(optimizer, lr=0.1, weight_decay=10 * bound * share) for share in (1.001, 0.999))
    assert over.underdamped
    assert not under.underdamped
    assert over.max_weight_decay == pytest.approx(bound / 0.1)
    assert isinstance(over.poles[0], complex)
    assert all(isinstance(pole, float) for pole in under.poles)
    # nothing jumps where the poles meet
    np.testing.assert_allclose(over.angle(LAGS), under.angle(LAGS), rtol=2e-3)


def test_decoupled_decay_is_never_underdamped():
    assert not law("adamw", lr=1.0, weight_decay=0.5).underdamped


def test_adam_with_l2_is_refused_with_the_reason():
    with pytest.raises(ArgumentError, match=r"no universal angle.*adamw"):
        law("adam", lr=1e-3, weight_decay=0.1)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"lr": 0}, "lr must be"),
        ({"weight_decay": -1}, "weight_decay must be"),
        ({"momentum": 1}, "momentum must be"),
        ({"beta2": 0.9}, "beta2 must be left out for sgd"),
        ({"weight_decay": 40}, "weights grow without bound"),
    ],
)
def test_bad_input_is_named(change, match):
    with pytest.raises(ArgumentError, match=match):
        law("sgd", **{"lr": 0.1, "weight_decay": 1e-3, **change})


@given(
    optimizer=st.sampled_from(OPTIMIZERS),
    x=st.floats(1e-13, 1.9),
    momentum=st.floats(0, 0.9999),
    lag=st.floats(0, 1e9),
)
def test_every_angle_is_an_angle(optimizer, x, momentum, lag):
    try:
        motion = law(optimizer, lr=1.0, weight_decay=x, momentum=momentum)
    except ArgumentError:
        return
    assert 0 <= motion.angle(lag) <= np.pi
    assert motion.timescale >= 0
