"""What isogon 0.1 saved still loads: a run, a checkpoint, a study, and its results."""

from __future__ import annotations

import json
import shutil
import warnings

import numpy as np
import pytest

from isogon import Recipe
from isogon.dynamics import SCHEMA, findings, read, read_epochs, read_run
from isogon.lab import Config, Run, load_checkpoint, train


@pytest.fixture
def saved(root, tmp_path):
    """A copy that tests may write to."""
    return shutil.copytree(root / "tests" / "data" / "saved_0_1", tmp_path / "saved")


def test_an_ended_run_is_read(saved):
    run = Run.read_if_ended(saved / "ended")
    assert (run.status, run.accuracy) == ("finished", 0.0845)
    assert len(run.epochs) == 3
    records = read(saved / "ended")
    assert list(records.columns) == list(SCHEMA)
    recipe = Recipe(**read_run(saved / "ended")["recipe"])
    assert recipe.tuning_factor == run.config.recipe.tuning_factor
    assert findings(records, recipe, epochs=read_epochs(saved / "ended")) is not None


def test_its_config_has_the_key_of_then(saved):
    """The folder's name in 0.1: with another key everything would be trained again."""
    config = Config.from_dict(json.loads((saved / "ended" / "config.json").read_text()))
    assert config.name == "cnn4-fashion-mini-n200-b50-lr0.1-wd0.005-s1-5115d05e"


def test_an_interrupted_run_resumes_where_it_was(saved):
    state = load_checkpoint(saved / "interrupted" / "checkpoint.pt")
    assert state["epoch"] == 2, "epochs done"
    config = Config.from_dict(json.loads((saved / "interrupted" / "config.json").read_text()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a damaged checkpoint would start again with a warning
        run = train(config, saved / "interrupted", device="cpu", progress=False)
    assert run.status == "finished"
    assert list(run.epochs["epoch"]) == [0, 1, 2]
    # Four steps from the checkpoint: where another processor rounds otherwise, the sixth digit of the loss may differ.
    whole = Run.read(saved / "ended")
    np.testing.assert_allclose(run.epochs["train_loss"], whole.epochs["train_loss"], rtol=1e-4)


def test_a_study_that_has_ended_answers_without_training(saved, monkeypatch):
    pytest.importorskip("optuna")
    from isogon.search import Progress, run

    def nothing_to_train(*arguments, **options):
        raise AssertionError("it trains again")

    monkeypatch.setattr("isogon.search.trials._execution.run_all", nothing_to_train)
    outcome = run(saved / "study.toml", saved / "study", progress=False)
    expected = Recipe.load(saved / "study" / "recipe.toml")
    assert outcome.recipe == expected
    assert Progress.read(saved / "study").to_dict()
