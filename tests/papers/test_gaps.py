"""Differences, their intervals, and verdicts put together."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from isogon.papers.reproduction._claims import Gap, combine, mean_of
from isogon.papers.reproduction._experiment import Judgement


def test_intervals_are_students():
    stats = pytest.importorskip("scipy.stats")
    for count in (2, 3, 5, 10, 15):
        values = pd.Series(np.random.default_rng(count).normal(1, 2, count))
        mean = mean_of(values)
        low, high = stats.t.interval(0.95, count - 1, loc=values.mean(), scale=stats.sem(values))
        assert mean.size == pytest.approx((low + high) / 2)
        assert mean.margin == pytest.approx((high - low) / 2, rel=3e-3)
    assert Gap(0, 1, 1000).margin == pytest.approx(stats.t.ppf(0.975, 1000), rel=0.02)
    assert math.isnan(mean_of(pd.Series([1.0])).margin), "one value tells no error"


def test_parts_of_a_claim_make_one_sentence_and_the_worst_decides():
    good, bad = Judgement("holds", "a is b", {"a": 1.0}), Judgement("undecided", "c is d", {"c": 2.0})
    both = combine(good, bad)
    assert (both.verdict, both.sentence, both.numbers) == ("undecided", "a is b; c is d.", {"a": 1.0, "c": 2.0})
    assert combine(Judgement("holds", "A is b."), Judgement("fails", "C is d.")).sentence == "A is b. C is d."
    assert combine(good).sentence == "a is b."


def test_an_error_that_nobody_can_tell_is_not_shown_as_a_number():
    assert Gap(0.0035, 0.001, 4).text(" points", times=100, signed=True) == "+0.35 ± 0.10 points"
    assert mean_of(pd.Series([0.0035])).text(" points", times=100) == "0.35 points (of unknown error)"
