"""Before the first trial: folders stay inside, slips in the task show at once, values must be the metric."""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
import warnings
from pathlib import Path

import pytest

pytest.importorskip("optuna")

from isogon.cli import main
from isogon.errors import IsogonError
from isogon.lab import Config, TrainingEnded, run_all
from isogon.lab.run._checkpoints import FolderLock
from isogon.recipe import Recipe
from isogon.search import Study, run
from isogon.search._status import Progress
from isogon.search.study._study import MetricError, TaskTable

OBJECTIVES = """
import math

def loss(trial):
    value = 2.0 + 0.05 * math.log2(trial.recipe.tuning_factor / 0.1) ** 2
    trial.report(0, value)
    return value + 0.001 * math.sin(trial.seed + math.log(trial.recipe.tuning_factor))

def per_cent(trial):
    return 87.5

def endless(trial):
    if trial.recipe.tuning_factor > 0.3:
        trial.report(0, math.inf)
        return math.inf
    return fine(trial)

def fine(trial):
    return 0.9 - 0.02 * math.log2(trial.recipe.tuning_factor / 0.1) ** 2
"""
RECIPE = {"lr": 0.1, "weight_decay": "?", "batch_size": 50, "samples": 1600, "epochs": 2}


@pytest.fixture
def make(put_module):
    put_module("guarded_objectives", OBJECTIVES)

    def study(name="fine", pruner="none", **task):
        tables = {
            "recipe": RECIPE,
            "search": {"seeds": 2, "fractions": ["1/16"], "pruner": pruner},
            "run": {"workers": 1},
        }
        if "data" not in task:
            task["objective"] = f"guarded_objectives:{name}"
        return Study.from_tables({**tables, "task": task})

    return study


@pytest.mark.parametrize("pruner", ["none", "median"])
def test_a_loss_is_minimized_and_shown_as_it_is(make, tmp_path, no_workers, pruner):
    outcome = run(make("loss", metric="loss", pruner=pruner), tmp_path / "out", progress=False)
    assert outcome.tuning_factor == pytest.approx(0.1, rel=0.2)
    assert all(row.score is None or -3 < row.score < -1.9 for row in outcome.trials)
    answer = json.loads((tmp_path / "out" / "outcome.json").read_text())
    assert (answer["metric"], answer["direction"]) == ("loss", "minimize")
    (best,) = [one["best"] for one in Progress.read(tmp_path / "out").to_dict()["fractions"]]
    assert best["loss"] == pytest.approx(2.0, abs=0.02)
    from isogon.report.search._page import search_text

    page = search_text(outcome, tmp_path / "out")
    assert "Loss against the tuning factor" in page
    assert "of loss, twice the best" in page


@pytest.mark.parametrize("sampler", ["tpe", "gp", "random"])
def test_samplers_minimize_a_loss_too(make, tmp_path, no_workers, sampler):
    tables = make("loss", metric="loss").model_dump()
    tables["search"] |= {"sampler": sampler, "trials": 8}
    outcome = run(Study.from_tables(tables), tmp_path / "out", progress=False)
    assert outcome.tuning_factor == pytest.approx(0.1, rel=0.5)


def test_the_command_prints_the_metric_by_its_name(make, tmp_path, no_workers, capsys):
    study = "\n".join(
        [
            "[recipe]",
            'lr = 0.1\nweight_decay = "?"\nbatch_size = 50\nsamples = 1600\nepochs = 2',
            '[task]\nobjective = "guarded_objectives:loss"\nmetric = "val_loss"',
            '[search]\nseeds = 2\nfractions = ["1/16"]',
        ]
    )
    make("loss")
    (tmp_path / "study.toml").write_text(study)
    with pytest.raises(SystemExit) as stop:
        main(["search", "study.toml", "--out", "out"])
    assert stop.value.code == 0
    out = capsys.readouterr().out
    assert "val_loss there" in out
    assert "of val_loss, twice the best" in out
    assert "accuracy" not in out


def test_what_cannot_be_an_accuracy_stops_the_search_at_once(make, tmp_path, no_workers):
    with pytest.raises(
        MetricError, match=r"accuracy must be from 0 to 1, got 87.5: divide per cent by 100; for a loss"
    ):
        run(make("per_cent"), tmp_path / "out", progress=False)
    rows = Progress.read(tmp_path / "out").trials
    assert {row.status for row in rows} <= {"waiting", "running"}, "no trial is spent on it"


@pytest.mark.parametrize(
    ("task", "complaint"),
    [
        ({"metric": "loss", "direction": "maximize"}, "is to be minimized"),
        ({"metric": "accuracy", "direction": "minimize"}, "is to be maximized"),
        ({"metric": "neg_log_loss"}, 'add direction = "minimize" or "maximize"'),
        ({"metric": "reward"}, 'add direction = "minimize" or "maximize"'),
        ({"metric": "", "direction": "minimize"}, "study key task.metric"),
        ({"metric": "a\nb", "direction": "minimize"}, "cannot be printed"),
        ({"direction": "up"}, "study key task.direction"),
        ({"data": "digits", "metric": "bleu", "direction": "maximize"}, "a lab task has accuracy and loss"),
    ],
)
def test_a_metric_that_makes_no_sense_is_refused(make, task, complaint):
    with pytest.raises(IsogonError, match=complaint):
        make(**task)


def test_an_infinite_value_is_a_trial_that_diverged_and_stops_no_search(make, tmp_path, no_workers):
    outcome = run(make("endless"), tmp_path / "out", progress=False)
    assert outcome.lost["diverged"] > 0
    assert outcome.tuning_factor == pytest.approx(0.1, rel=0.3)


def test_nan_is_a_trial_that_diverged_whatever_the_metric():
    for metric in ("accuracy", "loss"):
        assert math.isnan(TaskTable(objective="o", metric=metric).check_value(math.nan))


def test_a_study_of_before_keeps_its_key(make):
    """Keys that came later do not count where they change nothing: 0.1 maximized whatever an objective returned."""
    assert make().key == "683690478d7634c2a452afbf083064f6810e6811b81c644c53c006bc4aaeb68b"
    assert make().key == make(metric="minus_loss", direction="maximize").key
    assert make().key != make(metric="loss").key


LAB = {"data": "digits", "net": "cnn4", "net_options": {"width": 4}, "augmentation": "none"}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"net": "cnn5"}, "net must be a function of isogon.nets"),
        ({"net": "nowhere.py:Net"}, "there is no file nowhere.py"),
        ({"net_options": {"wdith": 4}}, "net_options must be arguments of cnn4"),
        ({"net": "isogon.nets:resnet18", "data": "digitz"}, "name must be one of"),
        ({"data": "npz:nowhere.npz"}, "does not exist"),
        ({"net": "mine.py:narrow"}, r"net mine.py:narrow does not take the images of digits \(RuntimeError"),
    ],
)
def test_networks_and_data_are_tried_before_the_first_trial(make, tmp_path, change, complaint):
    (tmp_path / "mine.py").write_text(
        "from torch import nn\n\ndef narrow(classes, channels, **_):\n    return nn.Linear(3, 3)\n"
    )
    with pytest.raises(IsogonError, match=complaint) as refusal:
        run(make(**{**LAB, **change}), tmp_path / "out", progress=False)
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "out").exists(), "nothing was started"


@pytest.mark.parametrize("net", ["mine.py:/abs/path", "mine.py:../../up", "a:b\nc", "x:.."])
@pytest.mark.parametrize("data", ["../../../../X", "digits", "npz:/etc"])
def test_names_of_folders_stay_inside(net, data):
    name = Config(recipe=Recipe(**{**RECIPE, "weight_decay": 1e-3}), net=net, data=data, net_options={}).name
    assert name == os.path.basename(name)
    assert not name.startswith(".")
    assert name.isprintable()


def test_a_folder_that_cannot_be_written_is_named(make):
    place = Path(tempfile.mkdtemp())
    place.chmod(0o755)
    run(make(), place / "out", progress=False)
    root = os.geteuid() == 0
    (place / "out").chmod(0o555)
    try:
        if root:  # to whom nothing is forbidden
            os.seteuid(65534)
        with pytest.raises(IsogonError, match=r"out must be a folder to write in, got .*Permission denied"):
            run(make(), place / "out", fresh=True, progress=False)
    finally:
        if root:
            os.seteuid(0)
        (place / "out").chmod(0o700)
        shutil.rmtree(place)


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"unknown": "x"}', b"\xff", b"[" * 50_000])
def test_a_damaged_outcome_is_named_by_status(make, tmp_path, no_workers, content, capsys):
    run(make(), tmp_path / "out", progress=False)
    (tmp_path / "out" / "outcome.json").write_bytes(content)
    with pytest.raises(SystemExit) as stop:
        main(["search", "--status", str(tmp_path / "out")])
    assert stop.value.code == 2
    assert "outcome.json can be read" in capsys.readouterr().err


def test_leftovers_of_a_killed_search_are_removed(make, tmp_path, no_workers):
    (tmp_path / "out").mkdir()
    for name in (".recipe.toml.99-ab.partial", ".outcome.json.99-ab.partial", ".study.json.99-ab.partial"):
        (tmp_path / "out" / name).touch()
    run(make(), tmp_path / "out", progress=False)
    assert not list((tmp_path / "out").glob(".*.partial"))


def test_a_damaged_result_of_an_objective_is_made_again(make, tmp_path, no_workers):
    before = run(make(), tmp_path / "out", progress=False)
    (tmp_path / "out" / "study.db").unlink()  # as if the search had been killed before it could write them down
    victim = next((tmp_path / "out" / "trials").glob("*/result.json"))
    victim.write_text('{"val')
    with pytest.warns(UserWarning, match="is damaged: the objective is called again"):
        after = run(make(), tmp_path / "out", progress=False)
    assert after.recipe == before.recipe


def test_a_folder_removed_while_others_train_costs_no_result(tmp_path):
    """The first run's folder goes as soon as it has ended; its result is what it was."""
    recipe = Recipe(lr=0.1, weight_decay=5e-3, batch_size=50, samples=200, epochs=1)
    options = {"net": "cnn4", "net_options": {"width": 4}, "data": "digits", "augmentation": "none", "monitor_every": 0}
    configs = [Config(recipe=recipe, seed=seed, **options) for seed in range(2)]
    removed: list[Path] = []

    def news(event):
        if isinstance(event, TrainingEnded) and not removed:
            removed.append(event.run.folder)
            for file in sorted(event.run.folder.iterdir()):
                file.unlink()
            event.run.folder.rmdir()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        runs = run_all(configs, out=tmp_path, workers=1, progress=False, news=news)
    assert [run.status for run in runs] == ["finished", "finished"]
    assert not removed[0].exists()


def test_the_lock_follows_no_link(tmp_path):
    (tmp_path / "precious").write_text("kept")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match=r"symbolic links"):
        FolderLock(tmp_path / "run")
    assert (tmp_path / "precious").read_text() == "kept"
