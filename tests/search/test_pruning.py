"""Trials stopped early: by Optuna's pruners, among their equals, for good, and counted."""

from __future__ import annotations

from pathlib import Path

import optuna
import pytest

from isogon import Recipe
from isogon.lab import Config, Run, train
from isogon.search import Study, run
from isogon.search._sentences import lost_sentence
from isogon.search._status import Progress
from isogon.search.trials._ledger import Ledger, PlannedTrial, StoredTrial
from isogon.search.trials._pruning import PruningJudge

EPOCHS = 9


def row(number, samples=100, status="running", accuracy=None, purpose="search"):
    cell = PlannedTrial(0.1, samples, samples / 1600, number, purpose)
    return StoredTrial(cell, number, status, accuracy, 0, 0.0, None)


def judge(pruner, rows, reports=None):
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return PruningJudge(pruner, epochs=EPOCHS, trials=rows, reports=reports or {})


def stopped(judging, chosen, folder, epoch, value):
    place = folder / f"{chosen.number}"
    judging.report(chosen, epoch, value, place)
    return (place / "stop").exists()


GOOD = {epoch: 0.5 + 0.05 * epoch for epoch in range(EPOCHS)}


@pytest.mark.parametrize("known", ["before", "meanwhile"])
def test_the_median_of_those_that_finished_decides(tmp_path, known):
    """Whether they had ended when the search resumed, or end while it runs."""
    finished = [row(number, status="finished", accuracy=0.9) for number in range(5)]
    if known == "before":
        judging = judge("median", [*finished, row(5), row(6)], {done.number: GOOD for done in finished})
    else:
        judging = judge("median", [*(row(number) for number in range(7))])
        for done in finished:
            for epoch, value in GOOD.items():
                assert not stopped(judging, done, tmp_path, epoch, value)
            judging.end(done, "finished", 0.9)
    assert not stopped(judging, row(5), tmp_path, 0, 0.51)
    assert stopped(judging, row(6), tmp_path, 0, 0.4)


def test_a_trial_is_compared_with_its_equals_alone(tmp_path):
    """A smaller data size, or verification, is no measure; NaN is for divergence to deal with."""
    finished = [row(number, samples=200, status="finished", accuracy=0.9) for number in range(5)]
    rows = [*finished, row(5, samples=100), row(6, samples=200), row(7, samples=200, purpose="verify")]
    judging = judge("median", rows, {done.number: GOOD for done in finished})
    assert not stopped(judging, rows[5], tmp_path, 0, 0.1)
    assert not stopped(judging, rows[7], tmp_path, 0, 0.1)
    assert not stopped(judging, rows[6], tmp_path, 0, float("nan"))
    assert stopped(judging, rows[6], tmp_path, 0, 0.1)
    none = judge("none", rows, {done.number: GOOD for done in finished})
    assert not stopped(none, row(6, samples=200), tmp_path / "none", 0, 0.0)


def test_hyperband_keeps_the_best_of_each_bracket(tmp_path):
    """The worse a trial, the more surely it is stopped; reports before and reports meanwhile count the same."""
    count = 18
    rows = [row(number) for number in range(count)]
    values = {number: 0.9 - 0.03 * number for number in range(count)}
    judging = judge("hyperband", rows)
    alive = set(range(count))
    for epoch in range(EPOCHS - 1):
        for number in sorted(alive):
            if stopped(judging, rows[number], tmp_path, epoch, values[number] + 0.001 * epoch):
                alive.remove(number)
    assert 0 in alive
    assert len(alive) < count
    assert sum(number < count // 2 for number in alive) > sum(number >= count // 2 for number in alive)


def config(samples=200, seed=0):
    recipe = Recipe(lr=0.1, weight_decay=5e-3, batch_size=50, samples=samples, epochs=4)
    options = {"width": 2}
    return Config(recipe=recipe, net="cnn4", net_options=options, data="digits", augmentation="none", seed=seed)


def test_a_training_that_finds_the_file_ends_after_its_epoch(tmp_path):
    place = tmp_path / "run"

    def stop_after_two(line):
        if line["epoch"] == 1:
            (place / "stop").touch()

    ended = train(config(), place, progress=False, report=stop_after_two)
    assert (ended.status, len(ended.epochs), ended.images) == ("pruned", 2, 400)
    assert ended.accuracy != ended.accuracy
    again = Run.read(place)
    assert (again.status, again.images) == ("pruned", 400)
    # One that has had its last epoch is finished, whatever is found beside it.
    late = tmp_path / "late"
    done = train(config(), late, progress=False, report=lambda line: line["epoch"] == 3 and (late / "stop").touch())
    assert done.status == "finished"


def test_a_training_that_was_killed_stays_stopped(tmp_path):
    place = tmp_path / "run"

    def killed(line):
        (place / "stop").touch()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config(), place, progress=False, report=killed)
    ended = train(config(), place, progress=False)
    assert (ended.status, len(ended.epochs)) == ("pruned", 1)


OBJECTIVES = """
import math, time

def patient(trial):
    height = 0.9 - 0.02 * math.log2(trial.recipe.tuning_factor / 0.1) ** 2
    for epoch in range(9):
        time.sleep(0.03)
        trial.report(epoch, height * (epoch + 1) / 9)
    return height
"""


@pytest.fixture
def study(put_module):
    put_module("objectives_of_pruning", OBJECTIVES)
    return Study.from_tables(
        {
            "recipe": {"lr": 0.1, "weight_decay": "?", "batch_size": 50, "samples": 1600, "epochs": EPOCHS},
            "task": {"objective": "objectives_of_pruning:patient"},
            "search": {"seeds": 2, "pruner": "median", "fractions": ["1/16"]},
            "run": {"workers": 1},
        }
    )


def test_a_search_stops_the_hopeless_and_says_so(study, tmp_path, no_workers):
    outcome = run(study, tmp_path / "out", progress=False)
    pruned = [row for row in outcome.trials if row.status == "pruned"]
    assert pruned
    assert outcome.lost["pruned"] == len(pruned) == outcome.to_dict()["pruned"]
    # After the first five the tuning factors above the top are given up; the top is not.
    assert all(row.planned.tuning_factor > 0.1 and row.score is None for row in pruned)
    assert outcome.tuning_factor == pytest.approx(0.1, rel=0.3)
    for one in pruned:
        assert 100 <= one.images < 100 * EPOCHS
        assert one.images % 100 == 0
    assert outcome.cost.images == sum(row.images for row in outcome.trials)
    assert f"{len(pruned)} pruned" in lost_sentence(outcome.trials)
    assert Progress.read(tmp_path / "out").to_dict()["pruned"] == len(pruned)
    trials = optuna.load_study(study_name="search", storage=f"sqlite:///{Path('out/study.db').resolve()}").trials
    assert {trial.number for trial in trials if trial.state.name == "PRUNED"} == {one.number for one in pruned}


def test_a_pruned_trial_is_ended_once_and_written_so(tmp_path):
    ledger = Ledger(f"sqlite:///{tmp_path / 'study.db'}", "one", "key")
    ledger.plan([PlannedTrial(0.1, 100, 1 / 16, 0)])
    (planned,) = ledger.trials()
    ledger.claim(planned)
    ledger.report(planned, 0, 0.25)
    ledger.end(planned, "pruned", None, images=100, seconds=1.0)
    (ended,) = ledger.trials()
    assert (ended.status, ended.score, ended.images) == ("pruned", None, 100)
    assert ledger.reports() == {0: {0: 0.25}}
