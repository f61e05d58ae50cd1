"""Optuna over learning rate and weight decay on the full data: what isogon's search is compared with."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import optuna
import pytest

from isogon import Recipe
from isogon.errors import ArgumentError, IsogonError
from isogon.lab import Config, Run, train

_FILE = Path(__file__).parents[2] / "benchmarks" / "search_baselines.py"
_SPEC = importlib.util.spec_from_file_location("search_baselines", _FILE)
baselines = importlib.util.module_from_spec(_SPEC)
sys.modules["search_baselines"] = baselines
_SPEC.loader.exec_module(baselines)
search_rates = baselines.search_rates

EPOCHS, SAMPLES = 3, 200
RANGES = {"lr": (0.01, 1.0), "weight_decay": (1e-4, 1e-2)}


@pytest.fixture
def config():
    recipe = Recipe(lr=0.1, weight_decay=1e-3, batch_size=50, samples=SAMPLES, epochs=EPOCHS)
    options = {"width": 2, "scale_invariant": "affine"}
    return Config(
        recipe=recipe, net="cnn4", net_options=options, data="digits", augmentation="none", monitor_every=0, seed=5
    )


def runs(folder, count):
    return [Run.read(folder / f"trial-{number}") for number in range(count)]


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_the_best_run_is_found_and_all_are_counted(config, tmp_path, sampler):
    rates = search_rates(config, tmp_path, **RANGES, trials=3, sampler=sampler)
    trained = runs(tmp_path, 3)
    best = max(trained, key=lambda run: run.accuracy)
    assert (rates.recipe, rates.accuracy) == (best.config.recipe, best.accuracy)
    assert rates.images == sum(run.images for run in trained) == 3 * EPOCHS * SAMPLES
    assert rates.trials == 3
    assert rates.lost == {"diverged": 0, "pruned": 0}
    for run in trained:
        assert run.config.seed == 5
        for name, (low, high) in RANGES.items():
            assert low <= getattr(run.config.recipe, name) <= high
    assert len({run.config.recipe for run in trained}) == 3
    assert search_rates(config, tmp_path, **RANGES, trials=3, sampler=sampler) == rates


def test_stopped_in_the_middle_of_a_run_it_ends_as_if_it_had_not_been(config, tmp_path, monkeypatch):
    epochs = []

    def interrupted(config, place, *, report, **options):
        def counted(row):
            report(row)
            epochs.append(row["epoch"])
            if len(epochs) == EPOCHS + 2:
                raise KeyboardInterrupt

        return train(config, place, report=counted, **options)

    monkeypatch.setattr(baselines, "train", interrupted)
    with pytest.raises(KeyboardInterrupt):
        search_rates(config, tmp_path / "stopped", **RANGES, trials=3)
    stopped = search_rates(config, tmp_path / "stopped", **RANGES, trials=3)
    assert epochs == [0, 1, 2] * 3, "no epoch is trained twice"
    assert stopped == search_rates(config, tmp_path / "whole", **RANGES, trials=3)


def test_pruned_runs_count_for_what_they_saw(config, tmp_path, monkeypatch):
    """With a pruner that gives up every run but the first after its first epoch."""

    class Strict(optuna.pruners.BasePruner):
        def prune(self, study, trial):
            return trial.number > 0

    monkeypatch.setattr(baselines, "make_pruner", lambda name, epochs: Strict())
    rates = search_rates(config, tmp_path, **RANGES, trials=3, pruner="median")
    assert rates.lost == {"diverged": 0, "pruned": 2}
    assert rates.images == (EPOCHS + 1 + 1) * SAMPLES
    assert rates.recipe == runs(tmp_path, 1)[0].config.recipe


def test_rates_at_which_nothing_survives(config, tmp_path, monkeypatch):
    monkeypatch.setattr("isogon.lab.run._training.is_stuck", lambda *_: True)
    with pytest.raises(IsogonError, match="None of 2 runs finished"):
        search_rates(config, tmp_path, **RANGES, trials=2)
    with pytest.raises(ArgumentError, match="pruner"):
        search_rates(config, tmp_path / "other", **RANGES, trials=2, pruner="shears")
