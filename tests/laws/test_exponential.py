"""Exponential schedules without weight decay against the runs with it, on a scale-invariant loss in float64."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isogon import schedules
from isogon.errors import ArgumentError
from isogon.schedules import _exponential as exponential

MU = 0.9
CONSTANT = schedules.constant(0.2, 5e-3)
STEPWISE = schedules.phases([(0, 0.2, 5e-3), (60, 0.05, 5e-3), (130, 0.05, 2e-2)])
COSINE = schedules.cosine(0.2, 5e-3, 400)


def minibatch_gradients(seed=0, dim=8, count=40):
    """∇ of w·A_t w/‖w‖² for a sequence of random matrices A_t: a scale-invariant loss with noise."""
    rng = np.random.default_rng(seed)
    matrices = rng.standard_normal((count, dim, dim))

    def gradient(w, step):
        matrix = matrices[step % count]
        square = w @ w
        product = (matrix + matrix.T) @ w
        return (product - (w @ product) / square * w) / square

    return gradient, rng.standard_normal(dim)


def run(schedule, steps, *, correct=True, momentum=MU, buffer=None, decoupled=False):
    """Unit vectors of heavy-ball SGD under `schedule`, which may be exponential."""
    gradient, w = minibatch_gradients()
    v = np.zeros_like(w) if buffer is None else buffer.copy()
    out = []
    for step in range(steps):
        lr, decay = float(schedule.lr(step)), float(schedule.weight_decay(step))
        if correct and hasattr(schedule, "momentum_correction"):
            v = v + w * float(schedule.momentum_correction(step)) * np.exp(-2 * float(schedule.log_scale(step)))
        mu = float(schedule.momentum_at(step)) if hasattr(schedule, "momentum_at") else momentum
        v = mu * v + gradient(w, step) + (0.0 if decoupled else decay * w)
        w = w * (1 - lr * decay if decoupled else 1.0) - lr * v
        out.append(w / np.linalg.norm(w))
    return np.array(out)


def distance(a, b):
    return np.linalg.norm(a - b, axis=1)


# An error of 1e-15 injected at the start grows to about 1e-11 within this horizon (test_the_horizon measures it).
HORIZON = 200


def test_the_horizon():
    """How far rounding alone can take two equal runs apart: chaos of the loss, not of the method."""
    nudged = run(CONSTANT, HORIZON, buffer=np.full(8, 1e-15))
    assert distance(nudged, run(CONSTANT, HORIZON)).max() < 1e-11


@pytest.mark.parametrize(
    ("ordinary", "make"),
    [
        (CONSTANT, schedules.exp_lr),
        (CONSTANT, schedules.texp_plus),
        (STEPWISE, schedules.texp),
        (STEPWISE, schedules.texp_plus),
        (COSINE, schedules.texp_plus),
        (schedules.warmup(COSINE, 20, start=0.1), schedules.texp_plus),
        (schedules.warmup(COSINE, 20), schedules.texp_plus),  # from a rate of 0
        (schedules.phases([(0, 0.2, 5e-3), (50, 0.0, 5e-3), (90, 0.1, 5e-3)]), schedules.texp_plus),
    ],
)
def test_the_same_networks_without_weight_decay(ordinary, make):
    without = make(ordinary, momentum=MU)
    assert np.all(without.weight_decay(np.arange(5)) == 0)
    assert distance(run(ordinary, HORIZON), run(without, HORIZON)).max() < 1e-10


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.95])
def test_any_momentum(momentum):
    ordinary = schedules.step_decay(0.1, 1e-3, [50, 90], 3)
    for make in (schedules.texp, schedules.texp_plus):
        without = make(ordinary, momentum=momentum)
        assert distance(run(ordinary, 120, momentum=momentum), run(without, 120, momentum=momentum)).max() < 1e-10


def test_uncorrected_texp_is_measurably_off():
    corrected, bare = (run(schedules.texp(STEPWISE, momentum=MU), HORIZON, correct=c) for c in (True, False))
    reference = run(STEPWISE, HORIZON)
    assert distance(bare, reference).max() > 1e-4 > 1e5 * distance(corrected, reference).max()


def test_texp_plus_takes_any_first_buffer():
    buffer = np.random.default_rng(5).standard_normal(8)
    without = schedules.texp_plus(STEPWISE, momentum=MU)
    assert distance(run(STEPWISE, HORIZON, buffer=buffer), run(without, HORIZON, buffer=buffer)).max() < 1e-10


def test_texp_minus_is_weight_decay_divided_instead():
    first = STEPWISE.lrs[0]
    divided = schedules.phases(
        [
            (s, first, lr * wd / first)
            for s, lr, wd in zip(STEPWISE.starts, STEPWISE.lrs, STEPWISE.weight_decays, strict=True)
        ]
    )
    without = schedules.texp_minus(STEPWISE, momentum=MU)
    assert distance(run(divided, HORIZON), run(without, HORIZON)).max() < 1e-10
    # no instant drop: one step into a phase the rate is at least what it was
    assert without.log_lr(60) > without.log_lr(59)
    assert schedules.texp(STEPWISE, momentum=MU).log_lr(60) < schedules.texp(STEPWISE, momentum=MU).log_lr(59)


def test_growth_is_the_papers():
    """Figure 1: 1.481 per epoch of 391 steps at η = 0.1, λ = 5e-4, μ = 0.9; equations 6 and 9."""
    schedule = schedules.texp(schedules.step_decay(0.1, 5e-4, [1000]), momentum=0.9)
    assert np.exp(schedule.log_lr(391) - schedule.log_lr(0)) == pytest.approx(1.481, abs=5e-4)
    p = [1 - motion.slow.real for motion in schedule.motions]
    assert schedule.lr(0) == pytest.approx(0.1 / p[0])
    assert schedule.lr(500) / schedule.lr(499) == pytest.approx(p[0] ** -2)
    assert schedule.lr(1000) / schedule.lr(999) == pytest.approx(0.1 / (p[0] * p[1]))


@pytest.mark.parametrize("make", [schedules.texp, schedules.texp_plus])
def test_ten_million_steps_stay_finite(make):
    last = 10**7 if make is schedules.texp else 10**6
    schedule = make(schedules.step_decay(0.1, 5e-4, [9 * 10**5]), momentum=0.9)
    assert np.isfinite(schedule.log_lr(last))
    assert schedule.log_lr(last) > 710  # beyond what a float holds
    assert np.isinf(schedule.lr(last))


@pytest.mark.parametrize("make", [schedules.texp_plus, schedules.sgdw_form])
def test_a_recursion_does_not_depend_on_who_asked_before(make):
    ordinary = schedules.cosine(0.1, 5e-3, 20_000)
    at_once, bit_by_bit = make(ordinary, momentum=MU), make(ordinary, momentum=MU)
    asked = [3, 4095, 4097, 4096, 12_000, 11_999]
    np.testing.assert_array_equal([float(bit_by_bit.log_scale(step)) for step in asked], at_once.log_scale(asked))


def test_texp_plus_comes_close_to_texp_within_the_bound():
    """Inside the first phase, at whose start the two are furthest apart."""
    plus, plain = (make(schedules.constant(0.1, 5e-4), momentum=0.9) for make in (schedules.texp_plus, schedules.texp))
    inside = np.arange(1, 150)
    growth = [np.diff(s.log_lr(np.arange(0, 151)))[inside] for s in (plus, plain)]
    difference = np.abs(np.expm1(growth[0] - growth[1]))
    bound = exponential.closeness_bound(inside, largest_intrinsic_lr=5e-5, momentum=0.9)
    assert np.all(difference <= bound + 1e-15)
    assert difference.max() > 0.3 * bound[0]  # the bound is not empty
    assert exponential.closeness_bound(1, largest_intrinsic_lr=5e-5, momentum=0.9) == pytest.approx(0.0015)


@given(lr=st.floats(1e-3, 1), x=st.floats(1e-8, 2e-3), momentum=st.floats(0, 0.9))
def test_the_way_back(lr, x, momentum):
    ordinary = schedules.constant(lr, x / lr)
    without = schedules.exp_lr(ordinary, momentum=momentum)
    growth = float(np.exp(without.log_lr(1) - without.log_lr(0)))
    back = schedules.ordinary_form(lr=float(without.lr(0)), growth=growth, momentum=momentum)
    assert back.lr(0) == pytest.approx(lr, rel=1e-9)
    assert back.weight_decay(0) == pytest.approx(x / lr, rel=1e-6)
    assert without.ordinary == ordinary


def test_sgdw_without_decay():
    ordinary = schedules.warmup(schedules.cosine(0.2, 0.05, 300), 10, start=0.2)
    without = schedules.sgdw_form(ordinary, momentum=MU)
    with_decay = run(ordinary, HORIZON, decoupled=True)
    assert distance(with_decay, run(without, HORIZON)).max() < 1e-10


def test_adamw_without_decay():
    ordinary, betas, steps = schedules.constant(0.02, 0.5), (0.9, 0.98), 150
    without = schedules.adamw_form(ordinary, betas=betas)
    gradient, start = minibatch_gradients()

    def adam(lr, decay, b1, b2):
        w, m, v, out = start.copy(), np.zeros(8), np.zeros(8), []
        for step in range(steps):
            g = gradient(w, step)
            m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
            hat = m / (1 - b1 ** (step + 1)) / np.sqrt(v / (1 - b2 ** (step + 1)))
            w = (1 - lr(step) * decay) * w - lr(step) * hat
            out.append(w / np.linalg.norm(w))
        return np.array(out)

    with_decay = adam(lambda _: 0.02, 0.5, *betas)
    assert distance(with_decay, adam(lambda s: float(without.lr(s)), 0.0, *without.adam_betas)).max() < 1e-10
    assert distance(with_decay, adam(lambda s: float(without.lr(s)), 0.0, *betas)).max() > 1e-3


def test_balanced_decays_make_the_same_angles_at_one_norm():
    ordinary = schedules.step_decay(0.1, 1e-3, [100], 10)
    balanced = schedules.balanced(ordinary)
    steps = np.arange(200)
    np.testing.assert_allclose(balanced.lr(steps) * balanced.weight_decay(steps), ordinary.lr(steps) * 1e-3)
    np.testing.assert_allclose(balanced.lr(steps) / balanced.weight_decay(steps), 100.0)
    assert balanced.lr(150) == pytest.approx(0.1 / np.sqrt(10))


def test_labels_of_the_papers():
    """wd_x_y_lr_z_u: weight decay ÷ 10 at epochs x and y, learning rate ÷ 10 at z and u."""
    schedule = schedules.from_label("wd_20_60_lr_40_60", lr=0.1, weight_decay=5e-4, steps_per_epoch=10)
    steps = [0, 199, 200, 399, 400, 599, 600]
    np.testing.assert_allclose(schedule.lr(steps), [0.1, 0.1, 0.1, 0.1, 0.01, 0.01, 0.001])
    np.testing.assert_allclose(schedule.weight_decay(steps), [5e-4, 5e-4, 5e-5, 5e-5, 5e-5, 5e-5, 5e-6])
    from_zero = schedules.from_label("lr_0_0_5", lr=0.1, weight_decay=5e-4, steps_per_epoch=10)
    np.testing.assert_allclose(from_zero.lr([0, 49, 50]), [1e-3, 1e-3, 1e-4])


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: schedules.exp_lr(STEPWISE, momentum=MU), "schedule must be constant for exp_lr"),
        (lambda: schedules.texp(COSINE, momentum=MU), "schedule must be in phases for texp"),
        (lambda: schedules.texp_minus(COSINE, momentum=MU), "in phases for texp_minus"),
        (
            lambda: schedules.texp(schedules.constant(0.1, 0.03), momentum=MU),
            "largest weight decay at this learning rate is 0.0263",
        ),
        (lambda: schedules.texp(schedules.constant(0.0, 0.03), momentum=MU), "lr must be above 0 in every phase"),
        (lambda: schedules.texp_plus(schedules.constant(1, 0.5), momentum=MU), "α stays positive"),
        (lambda: schedules.sgdw_form(schedules.constant(1, 2), momentum=MU), "α stays positive .* ηλ up to 1"),
        (lambda: schedules.texp_plus(COSINE, momentum=1.0), "momentum must be"),
        (lambda: schedules.texp_plus(COSINE, momentum=MU).lr(0.5), "step must be whole"),
        (lambda: schedules.ordinary_form(lr=0.1, growth=2.0, momentum=0.9), "growth must be at most"),
        (lambda: schedules.ordinary_form(lr=0.1, growth=0.5, momentum=0.9), "growth must be"),
        (lambda: schedules.adamw_form(COSINE), "constant for adamw_form"),
        (lambda: schedules.from_label("wd_a", lr=1, weight_decay=0, steps_per_epoch=1), "label must be"),
        (lambda: schedules.from_label("wd_5_4", lr=1, weight_decay=0, steps_per_epoch=1), "label must be"),
    ],
)
def test_bad_input_is_named(make, match):
    with pytest.raises(ArgumentError, match=match):
        make()


def test_a_rate_of_zero_stays_zero():
    schedule = schedules.texp_plus(COSINE, momentum=MU)
    assert np.isfinite(schedule.log_lr(399))
    assert schedule.lr([400, 10**5]).tolist() == [0, 0]
    assert schedule.log_lr(400) == -np.inf


def test_texp_plus_is_the_papers_recursion():
    """Theorem 2.13 as it is printed, with the ratio of rates."""
    ordinary = schedules.warmup(schedules.cosine(0.2, 5e-3, 60), 10, start=0.1)
    rates, alpha, log_scale = ordinary.lr(np.arange(50)), 1.0, [0.0]
    for t in range(1, 51):
        ratio = 1.0 if t == 1 else rates[t - 1] / rates[t - 2]
        alpha = 1 - rates[t - 1] * 5e-3 + ratio * MU * (1 - 1 / alpha)
        log_scale.append(log_scale[-1] - np.log(alpha))
    schedule = schedules.texp_plus(ordinary, momentum=MU)
    np.testing.assert_allclose(schedule.log_scale(np.arange(51)), log_scale, rtol=1e-12)
    assert schedule.log_lr(7) == pytest.approx(log_scale[7] + log_scale[8] + np.log(rates[7]))
