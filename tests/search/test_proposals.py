"""Tuning factors by Optuna's samplers: within bounds, the same for the same past, and a search that finds its top."""

from __future__ import annotations

import math
from typing import get_args

import numpy as np
import pytest

from isogon.errors import ArgumentError, IsogonError
from isogon.search import Study, run
from isogon.search.fit._curve import fit_curve
from isogon.search.fit._grids import extension, refine, round_factor
from isogon.search.study import Sampler
from isogon.search.trials._ledger import Ledger
from isogon.search.trials._proposals import SAMPLERS, TriedFactor, propose

LIMITS = (0.01, 0.64)


def hill(factor, top=0.1):
    return 0.9 - 0.02 * math.log2(factor / top) ** 2


def history(sampler, count, top=0.1, **options):
    tried = []
    for _ in range(count):
        factor = propose(sampler, tried, LIMITS, **options)
        tried.append(TriedFactor(factor, hill(factor, top)))
    return tried


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_proposal_follows_from_the_past_alone(sampler):
    past = history(sampler, 6)
    assert past == history(sampler, 6)
    assert all(LIMITS[0] <= trial.tuning_factor <= LIMITS[1] for trial in past)
    following = propose(sampler, past, LIMITS)
    assert propose(sampler, [*past, TriedFactor(following, None)], LIMITS) != following, (
        "a lost cell is not tried again"
    )


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_no_proposal_repeats_another(sampler):
    """The same seeds at nearly the same tuning factor would say nothing new."""
    octaves = np.sort([math.log2(trial.tuning_factor) for trial in history(sampler, 14)])
    assert np.diff(octaves).min() > 0.03


@pytest.mark.parametrize(("sampler", "seeds"), [("tpe", 12), ("gp", 2)])
def test_a_model_looks_where_the_top_is(sampler, seeds):
    """After the random start, its proposals lie nearer to the top than random ones."""

    def distance(name):
        tries = [(top, history(name, 7, top, seed=100 * seed)) for top in (0.015, 0.4) for seed in range(seeds)]
        return np.mean([abs(math.log2(trial.tuning_factor / top)) for top, tried in tries for trial in tried[3:]])

    assert distance(sampler) < 0.8 * distance("random")


def test_an_unknown_sampler_is_refused():
    with pytest.raises(ArgumentError, match="sampler"):
        propose("steam", [], LIMITS)
    with pytest.raises(IsogonError, match="trials without a sampler"):
        Study.from_tables(tables("tpe", trials=5) | {"search": {"trials": 5}})


def test_a_curve_needs_no_grid():
    """Cells wherever they lie give the top of a parabola exactly, also where most of them crowd together."""
    generator = np.random.default_rng(3)
    for _ in range(20):
        crowd = 0.3 + 0.02 * generator.standard_normal(6)
        octaves = np.concatenate([generator.uniform(-3, 3, 6), crowd])
        points = [(0.1 * 2**x, 0, 0.9 - 0.02 * (x - 0.3) ** 2) for x in octaves]
        curve = fit_curve(points, step=1.0, bootstrap=100)
        if curve.edge is None:
            assert math.log2(curve.tuning_factor / 0.1) == pytest.approx(0.3, abs=1e-4)
        assert curve.step == 1.0


def test_a_crowd_of_cells_is_not_taken_for_the_whole_curve():
    """Seven cells within a fifth of an octave hardly know where the top is; those up to two steps away do."""
    generator = np.random.default_rng(5)
    octaves = [-3, -2, -1, *np.linspace(-0.1, 0.1, 7), 1, 2, 3]
    errors, held = [], []
    for _ in range(30):
        points = [
            (0.1 * 2**x, seed, 0.9 - 0.02 * (x - 0.3) ** 2 + 0.002 * generator.standard_normal())
            for x in octaves
            for seed in range(3)
        ]
        curve = fit_curve(points, step=1.0, bootstrap=200)
        errors.append(math.log2(curve.tuning_factor / 0.1) - 0.3)
        held.append(curve.interval[0] < 0.1 * 2**0.3 < curve.interval[1])
        # The next fraction gets cells a step apart, whatever the distance of these.
        assert np.diff(np.log2(refine(curve))) == pytest.approx([1, 1])
    assert np.sqrt(np.mean(np.square(errors))) < 0.12
    assert np.mean(held) > 0.7


def test_a_top_with_no_cell_beside_it_is_tried_itself_at_the_next_fraction():
    points = [(0.1 * 2**x, 0, 0.9 - 0.02 * x**2) for x in (-3, -2, -1, 1, 2, 3)]
    assert refine(fit_curve(points, step=1.0)) == pytest.approx((0.05, 0.1, 0.2), rel=6e-3)
    assert round_factor(0.1) == refine(fit_curve(points, step=1.0))[1]


def test_a_top_is_not_sought_far_beyond_cells_that_crowd():
    """A rise between two cells a tenth of an octave apart says nothing about half an octave beyond them."""
    points = [(0.1 * 2**x, 0, accuracy) for x, accuracy in ((0, 0.8), (0.1, 0.8), (0.2, 0.81))]
    assert math.log2(fit_curve(points, step=1.0).tuning_factor / 0.1) <= 0.26


def test_what_was_proposed_stays_so(tmp_path):
    """Also where the accuracies that it followed from have changed, by a retry say."""
    ledger = Ledger(f"sqlite:///{tmp_path / 'study.db'}", "one", "key")
    assert [ledger.proposal(place, lambda place=place: 0.1 + place) for place in (0, 1)] == [0.1, 1.1]
    again = Ledger(f"sqlite:///{tmp_path / 'study.db'}", "one", "key")
    assert [again.proposal(place, lambda: 7.0) for place in (0, 1, 2)] == [0.1, 1.1, 7.0]


def test_steps_beyond_an_edge_are_those_of_the_grid():
    points = [(0.1 * 2**x, 0, x) for x in (0, 1.9, 1.95, 2.0)]
    assert extension(fit_curve(points, step=1.0), limits=(0.001, 10)) == pytest.approx((0.8, 1.6))


OBJECTIVES = """
import math

def quick(trial):
    if trial.recipe.tuning_factor > 0.4:
        return float("nan")
    noise = 0.001 * math.sin(12.9898 * trial.seed + 78.233 * math.log(trial.recipe.tuning_factor))
    return 0.9 - 0.02 * math.log2(trial.recipe.tuning_factor / 0.1) ** 2 + noise
"""


def tables(sampler, **search):
    return {
        "recipe": {"lr": 0.1, "weight_decay": "?", "batch_size": 50, "samples": 1600, "epochs": 5},
        "task": {"objective": "objectives_of_proposals:quick"},
        "search": {"seeds": 2, "sampler": sampler, **search},
        "run": {"workers": 1},
    }


@pytest.fixture
def objectives(put_module, tmp_path):
    put_module("objectives_of_proposals", OBJECTIVES)
    return tmp_path


def test_a_search_by_a_sampler_finds_the_top_stopped_or_not(objectives, no_workers):
    study = Study.from_tables(tables("tpe", trials=5))
    messages: list[str] = []
    outcome = run(study, objectives / "whole", tell=messages.append)
    assert outcome.tuning_factor == pytest.approx(0.1, rel=0.3)
    first = {row.planned.tuning_factor for row in outcome.trials if row.planned.fraction == 1 / 16}
    assert len(first) == 5
    assert sum("by tpe" in sentence for sentence in messages) == 5
    assert outcome.cost.full_grid_images == 5 * 2 * 1600 * 5
    assert np.diff(np.log2(outcome.curve[200].grid)) == pytest.approx([1, 1])

    def stop(sentence):
        if "proposal 4 of 5" in sentence:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(study, objectives / "stopped", tell=stop)
    stopped = run(study, objectives / "stopped")
    assert [row.planned for row in stopped.trials] == [row.planned for row in outcome.trials]
    assert {**stopped.to_dict(), "seconds": 0} == {**outcome.to_dict(), "seconds": 0}


def test_a_study_knows_every_sampler_of_the_table():
    assert set(get_args(Sampler)) == {"grid", *SAMPLERS}
