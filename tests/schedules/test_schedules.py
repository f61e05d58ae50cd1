"""Ordinary schedules: values, joins, refusals."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from isogon import schedules
from isogon.errors import ArgumentError

ALL = {
    "constant": schedules.constant(0.1, 5e-4),
    "step": schedules.step_decay(0.1, 5e-4, [10, 20], 10),
    "cosine": schedules.cosine(0.1, 5e-4, 30),
    "linear": schedules.linear(0.1, 5e-4, 30, final_lr=0.01),
    "phases": schedules.phases([(0, 0.1, 5e-4), (7, 0.4, 1e-4)]),
    "warmup": schedules.warmup(schedules.cosine(0.1, 5e-4, 30), 5),
    "join": schedules.join([schedules.constant(0.1, 5e-4), schedules.cosine(0.2, 1e-4, 10)], [15]),
}


@pytest.mark.parametrize("name", ALL)
class TestEverySchedule:
    def test_is_a_function_of_the_step(self, name):
        schedule, steps = ALL[name], np.arange(40)
        for quantity in (schedule.lr, schedule.weight_decay):
            whole = quantity(steps)
            assert whole.shape == steps.shape
            np.testing.assert_array_equal(whole, [float(quantity(step)) for step in steps])
            assert quantity(steps.reshape(8, 5)).shape == (8, 5)
            assert np.all(whole >= 0)

    def test_is_frozen_and_compares_by_value(self, name):
        with pytest.raises(dataclasses.FrozenInstanceError):
            ALL[name].steps = 3
        assert ALL[name] == dataclasses.replace(ALL[name])

    def test_refuses_steps_before_the_start(self, name):
        with pytest.raises(ArgumentError, match="step must be"):
            ALL[name].lr(-1)

    def test_keeps_its_last_value(self, name):
        assert ALL[name].lr(10**6) == ALL[name].lr(10**7)


def test_values():
    assert ALL["step"].lr([9, 10, 19, 20]).tolist() == pytest.approx([0.1, 0.01, 0.01, 0.001])
    assert ALL["cosine"].lr([0, 15, 30]).tolist() == pytest.approx([0.1, 0.05, 0.0])
    assert ALL["cosine"].lr(30) == 0
    assert ALL["linear"].lr([0, 15, 30]).tolist() == pytest.approx([0.1, 0.055, 0.01])
    assert ALL["phases"].weight_decay([6, 7]).tolist() == [5e-4, 1e-4]
    assert ALL["phases"].phase([0, 6, 7, 99]).tolist() == [0, 0, 1, 1]
    assert ALL["warmup"].lr(0) == 0
    assert ALL["warmup"].lr(5) == ALL["cosine"].lr(5)
    assert ALL["join"].lr([14, 15, 20, 25]).tolist() == pytest.approx([0.1, 0.2, 0.1, 0.0])


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: schedules.phases([]), "starts must be increasing"),
        (lambda: schedules.phases([(1, 0.1, 0)]), "begin at 0"),
        (lambda: schedules.phases([(0, 0.1, 0), (20, 0.1, 0), (10, 0.1, 0)]), "starts must be increasing"),
        (lambda: schedules.phases([(0, 0.1, 0), (-5, 0.1, 0)]), "start must be a whole number from 0"),
        (lambda: schedules.phases([(0, 0.1, 0), (5, -0.1, 0)]), "lr must be a finite number at least 0"),
        (lambda: schedules.phases([(0, 0.1, 0), (5, 0.1, -1)]), "weight_decay must be a finite number at least 0"),
        (lambda: schedules.step_decay(0.1, 0, [20, 10]), r"milestones must be increasing .*got \[20, 10\]"),
        (lambda: schedules.step_decay(0.1, 0, [10], 0), "factor must be"),
        (lambda: schedules.constant(-0.1, 0), "lr must be"),
        (lambda: schedules.constant(0.1, -1), "weight_decay must be"),
        (lambda: schedules.cosine(0.1, 0, 0), "steps must be"),
        (lambda: schedules.linear(0.1, 0, 10, final_lr=-1), "final_lr must be"),
        (lambda: schedules.warmup(ALL["constant"], 0), "steps must be"),
        (lambda: schedules.warmup(ALL["constant"], 5, start=2), "start must be"),
        (lambda: schedules.join([ALL["constant"]], [3]), "boundaries must be 0 increasing steps"),
    ],
)
def test_bad_schedules_are_refused(make, match):
    with pytest.raises(ArgumentError, match=match):
        make()


def test_a_phase_without_weight_decay_has_no_balance():
    with pytest.raises(ArgumentError, match="schedule must be one with weight decay wherever it has a learning rate"):
        schedules.balanced(schedules.phases([(0, 0.4, 5e-4), (100, 0.04, 0.0)]))
    hidden = schedules.balanced(schedules.warmup(schedules.phases([(0, 0.4, 5e-4), (100, 0.04, 0.0)]), 5, start=0.1))
    with pytest.raises(ArgumentError, match="use it unbalanced"):
        hidden.lr([0, 100])
    # A rate of 0 needs none.
    ended = schedules.balanced(schedules.phases([(0, 0.4, 5e-4), (100, 0.0, 0.0)]))
    assert ended.lr([0, 100]).tolist() == pytest.approx([0.4, 0.0])
