"""Schedules by name: the ones of `isogon.schedules` that the name promises."""

from __future__ import annotations

import numpy as np
import pytest

from isogon import Recipe, schedules
from isogon.errors import ArgumentError
from isogon.schedules import from_name, phases_name

RECIPE = Recipe(lr=0.1, weight_decay=5e-3, momentum=0.8, batch_size=10, samples=70)
EPOCHS, EACH = 8, 7
STEPS = EPOCHS * EACH

step = schedules.step_decay(0.1, 5e-3, [STEPS // 2, 3 * STEPS // 4], 10)
label = schedules.phases([(0, 0.1, 5e-3), (14, 0.1, 5e-4), (28, 0.01, 5e-4)])


def made(name, epochs=EPOCHS, each=EACH):
    return from_name(name, RECIPE, epochs=epochs, steps_per_epoch=each)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("constant", schedules.constant(0.1, 5e-3)),
        ("step", step),
        ("step:4,6", step),
        ("step:2,3.5/4", schedules.step_decay(0.1, 5e-3, [14, 24], 4)),
        ("cosine", schedules.cosine(0.1, 5e-3, STEPS)),
        ("linear", schedules.linear(0.1, 5e-3, STEPS)),
        ("wd_2_lr_4", label),
        ("phases:0=0.1,5e-3;2=0.1,5e-4;4=0.01,5e-4", label),
        ("phases:0=0.4,0.01;2.5=1.6,0", schedules.phases([(0, 0.4, 0.01), (18, 1.6, 0.0)])),
        ("balanced(phases:0=0.1,5e-3;2=0.1,5e-4;4=0.01,5e-4)", schedules.balanced(label)),
        ("warmup:2(step)", schedules.warmup(step, 14)),
        ("warmup:0.5(cosine)", schedules.warmup(schedules.cosine(0.1, 5e-3, STEPS), 4)),
        ("balanced(step)", schedules.balanced(step)),
        ("balanced(wd_2_lr_4)", schedules.balanced(label)),
        ("exp(constant)", schedules.exp_lr(schedules.constant(0.1, 5e-3), momentum=0.8)),
        ("texp(step)", schedules.texp(step, momentum=0.8)),
        ("texp_minus(step)", schedules.texp_minus(step, momentum=0.8)),
        ("texp_plus(warmup:2(cosine))", schedules.texp_plus(made("warmup:2(cosine)"), momentum=0.8)),
    ],
)
def test_a_name_gives_its_schedule(name, expected):
    steps = np.arange(STEPS)
    np.testing.assert_array_equal(made(name).lr(steps), expected.lr(steps))
    np.testing.assert_array_equal(made(name).weight_decay(steps), expected.weight_decay(steps))
    assert type(made(name)) is type(expected)


def test_step_divides_by_ten_at_half_and_three_quarters():
    np.testing.assert_allclose(made("step").lr([0, 27, 28, 41, 42, 55]), [0.1, 0.1, 0.01, 0.01, 0.001, 0.001])
    np.testing.assert_array_equal(made("step").weight_decay(np.arange(STEPS)), 5e-3)


@pytest.mark.parametrize(
    "name",
    [
        *("", "stairs", "step(step)", "step ", "lr", "lr_", "lr_x", "80_lr", "texp(step", "texp(stairs)"),
        *("phases:", "phases:0=0.1", "phases:0,0.1=5e-3", "phases:0=0.1,5e-3;", "phases:0=x,5e-3", "phases:nan=0.1,0"),
        *("warmup(step)", "warmup:x(step)", "balanced:2(step)", "exp:2(constant)"),
    ],
)
def test_a_name_that_no_schedule_has_is_refused(name):
    with pytest.raises(ArgumentError, match="schedule must be constant, step, cosine, linear or like step:150,225"):
        made(name)


@pytest.mark.parametrize("name", ["step:", "step:x", "step:4,2", "step:0", "step:2/0", "step:2/x", "step:1e99"])
def test_steps_are_at_rising_epochs(name):
    with pytest.raises(ArgumentError, match="schedule must be step:EPOCHS/DIVISOR with rising epochs"):
        made(name)


def test_without_a_length_only_what_needs_none_is_made():
    for name in ("constant", "step:2,3", "lr_2"):
        assert schedules.from_name(name, RECIPE, epochs=None, steps_per_epoch=EACH).lr(0) == 0.1
    with pytest.raises(ArgumentError, match="epochs must be given"):
        schedules.from_name("cosine", RECIPE, epochs=None, steps_per_epoch=EACH)


def test_phases_start_at_epoch_zero_and_in_order():
    for name in ("phases:1=0.1,5e-3", "phases:0=0.1,5e-3;4=0.2,0;2=0.1,0"):
        with pytest.raises(ArgumentError, match="starts must be increasing and begin at 0"):
            made(name)


def test_the_name_of_phases_is_read_back_exactly():
    parts = [(0, 0.1 / 3, 5e-4), (3, 1e-7, 0.0), (5, 12.8, 1 / 7)]
    schedule = made(phases_name(parts))
    np.testing.assert_array_equal(schedule.lr([0, 20, 21, 35]), [0.1 / 3, 0.1 / 3, 1e-7, 12.8])
    np.testing.assert_array_equal(schedule.weight_decay([0, 21, 55]), [5e-4, 0.0, 1 / 7])


@pytest.mark.parametrize("name", ["warmup:2(texp(step))", "texp_plus(exp(constant))", "balanced(texp_plus(cosine))"])
def test_an_exponential_schedule_is_the_outermost(name):
    """Inside, it would train without weight decay and without the driver's care."""
    with pytest.raises(ArgumentError, match="schedule must be exponential on the outside alone"):
        made(name)


@pytest.mark.parametrize("name", ["step", "texp(step)", "cosine", "lr_80"])
@pytest.mark.parametrize(("epochs", "each"), [(1, 1), (1, 2), (1, 3), (2, 1), (3, 1)])
def test_runs_of_a_few_steps_have_schedules(name, epochs, each):
    rates = made(name, epochs, each).lr(np.arange(epochs * each))
    assert (rates > 0).all()
    if name == "step":
        assert rates[0] == 0.1
        assert (np.diff(rates) <= 0).all()
