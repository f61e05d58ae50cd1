"""A whole search with an objective whose top is known: found, kept through kills, honest about what was lost."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from isogon.errors import ArgumentError, IsogonError
from isogon.lab.run import _checkpoints as checkpoints
from isogon.search import Study, run
from isogon.search import _run as running
from isogon.search.trials._ledger import StudyChangedError

OBJECTIVES = """
import math, os, time

def curve(trial, top):
    noise = 0.002 * math.sin(12.9898 * trial.seed + 78.233 * math.log(trial.recipe.tuning_factor))
    return 0.9 - 0.02 * math.log2(trial.recipe.tuning_factor / top) ** 2 + noise

def quick(trial):
    return curve(trial, 0.1)

def drifting(trial):
    return curve(trial, 0.1 * (trial.recipe.samples / 1600) ** 0.5)

def far(trial):
    return max(0.0, curve(trial, 1.5))

def lossy(trial):
    if trial.recipe.tuning_factor > 0.5:
        return float("nan")
    if trial.seed == 1 and trial.recipe.samples == 100:
        raise ValueError("no luck")
    return curve(trial, 0.1)

def text(trial):
    return "good"

def tensor(trial):
    import torch
    return torch.tensor(curve(trial, 0.1))

def lost(trial):
    return float("nan")

def early(trial):
    trial.report(-1 if trial.seed == 1 else 0, 0.1)
    return curve(trial, 0.1)

def loading(trial):
    import torch
    from torch.utils.data import DataLoader, TensorDataset
    for _ in DataLoader(TensorDataset(torch.zeros(8, 1)), batch_size=4, num_workers=1):
        pass
    return curve(trial, 0.1)

def with_files(trial):
    # Trains in the lab and keeps what isogon itself keeps; killed in its first call.
    from isogon import Recipe
    from isogon.lab import Config, train
    (trial.folder / "result.json").write_text("{}")
    if not os.path.exists("killed"):
        open("killed", "w").close()
        os.kill(os.getpid(), 9)
    (trial.folder / "result.json").unlink()
    recipe = Recipe(lr=0.1, weight_decay=1e-3, batch_size=50, samples=50, epochs=1)
    config = Config(recipe=recipe, net="cnn4", net_options={"width": 2}, data="digits", monitor_every=0)
    assert train(config, trial.folder, device="cpu", progress=False).status == "finished"
    return curve(trial, 0.1)

def slow(trial):
    step = trial.folder / "step"
    done = int(step.read_text()) if step.exists() else 0
    for now in range(done, 5):
        time.sleep(0.02)
        (trial.folder / "partial").write_text(str(now + 1))
        os.replace(trial.folder / "partial", step)
        trial.report(now, 0.1 * now)
    with open("calls.txt", "a") as calls:
        calls.write(f"{trial.folder.name}\\n")
    return curve(trial, 0.1)
"""


@pytest.fixture(autouse=True)
def _where_the_objectives_are(put_module):
    put_module("objectives_of_a_test", OBJECTIVES)


def tables(name: str, **search: object) -> dict[str, object]:
    return {
        "recipe": {"lr": 0.1, "weight_decay": "?", "batch_size": 50, "samples": 1600, "epochs": 5},
        "task": {"objective": f"objectives_of_a_test:{name}"},
        "search": {"seeds": 2, **search},
        "run": {"workers": 1},
    }


def test_the_top_is_found_and_carried_to_the_full_size(tmp_path, no_workers):
    messages: list[str] = []
    outcome = run(Study.from_tables(tables("quick", verify=True)), tmp_path / "out", tell=messages.append)
    assert outcome.tuning_factor == pytest.approx(0.1, rel=0.15)
    low, high = outcome.interval
    assert low < outcome.recipe.weight_decay < high
    assert outcome.recipe.tuning_factor == pytest.approx(outcome.tuning_factor)
    assert outcome.recipe.samples == 1600
    assert outcome.cost.share == pytest.approx((7 / 16 + 3 / 8) / 7)
    assert outcome.cost.verification_images == 3 * 2 * 1600 * 5
    assert len(outcome.verified()) == 3
    assert any("best tuning factor" in sentence for sentence in messages)
    for private in (tmp_path / "out", tmp_path / "out" / "study.json"):
        assert private.stat().st_mode & 0o077 == 0
    saved = json.loads((tmp_path / "out" / "outcome.json").read_text())
    assert saved["weight_decay"] == outcome.recipe.weight_decay
    again = run(Study.from_tables(tables("quick", verify=True)), tmp_path / "out")
    assert again.to_dict() == outcome.to_dict()
    (tmp_path / "out").rename(tmp_path / "renamed")
    assert run(Study.from_tables(tables("quick", verify=True)), tmp_path / "renamed").to_dict() == outcome.to_dict()
    (tmp_path / "renamed").rename(tmp_path / "out")
    with pytest.raises(StudyChangedError, match="--fresh"):
        run(Study.from_tables(tables("quick")), tmp_path / "out")
    fresh = run(Study.from_tables(tables("quick")), tmp_path / "out", fresh=True)
    assert len(fresh.trials) == 2 * (7 + 3)


def test_a_top_beyond_the_grid_makes_it_grow(tmp_path, no_workers):
    messages: list[str] = []
    outcome = run(Study.from_tables(tables("far", fractions=["1/16"])), tmp_path / "out", tell=messages.append)
    assert any("at the grid's high edge" in sentence for sentence in messages)
    assert outcome.curve[100].tuning_factor == pytest.approx(1.5, rel=0.2)
    assert outcome.curve[100].edge is None


def test_what_was_lost_is_counted_and_left_out(tmp_path, no_workers):
    outcome = run(Study.from_tables(tables("lossy")), tmp_path / "out")
    assert outcome.lost["failed"] == 6  # seed 1 of every cell of the first fraction that does not diverge
    assert outcome.lost["diverged"] == 2
    assert outcome.tuning_factor == pytest.approx(0.1, rel=0.3)
    errors = {row.error.strip().splitlines()[-1] for row in outcome.trials if row.error}
    assert errors == {"ValueError: no luck"}


def test_what_an_objective_keeps_is_its_own(tmp_path):
    """Also a result.json, after a kill too, and a run of the lab."""
    outcome = run(Study.from_tables(tables("with_files", seeds=1, fractions=["1/16"], size=3)), tmp_path / "out")
    assert [row.status for row in outcome.trials] == ["finished"] * len(outcome.trials)
    assert outcome.tuning_factor == pytest.approx(0.1, rel=0.3)
    assert (tmp_path / "killed").exists()


def test_an_objective_may_start_processes(tmp_path):
    outcome = run(Study.from_tables(tables("loading", seeds=1, fractions=["1/16"], size=3)), tmp_path / "out")
    assert not any(outcome.lost.values())
    assert outcome.tuning_factor == pytest.approx(0.1, rel=0.3)


def test_a_tensor_is_a_number(tmp_path, no_workers):
    outcome = run(Study.from_tables(tables("tensor", fractions=["1/16"])), tmp_path / "out")
    assert not any(outcome.lost.values())


def test_a_step_before_the_first_is_that_trials_failure(tmp_path, no_workers):
    study = Study.from_tables(tables("early", fractions=["1/16"], pruner="median"))
    outcome = run(study, tmp_path / "out")
    assert {row.status for row in outcome.trials if row.planned.seed == 1} == {"failed"}
    assert "step must be a whole number" in next(row.error for row in outcome.trials if row.error)
    assert outcome.tuning_factor == pytest.approx(0.1, rel=0.3)


def test_the_cure_fits_what_was_lost(tmp_path, no_workers):
    with pytest.raises(IsogonError, match=r"14 diverged.*fix the task and add --fresh"):
        run(Study.from_tables(tables("lost")), tmp_path / "out")
    with pytest.raises(IsogonError, match=r"14 failed.*fix the task and add --retry"):
        run(Study.from_tables(tables("text")), tmp_path / "other")


LAB = {"net": "cnn4", "net_options": {"width": 2}, "data": "digits", "augmentation": "none", "monitor_every": 0}


def lab_study(schedule: str) -> dict[str, object]:
    recipe = {"lr": "?", "weight_decay": 0.02, "batch_size": 32, "samples": 320, "epochs": 1}
    search = {"seeds": 1, "fractions": ["1/4"], "centre": 0.02, "size": 3}
    return {"recipe": recipe, "task": {**LAB, "schedule": schedule}, "search": search, "run": {"workers": 1}}


def test_cells_beyond_the_schedules_bound_are_lost_and_no_others(tmp_path, no_workers, monkeypatch):
    """Here where the grid has grown; its own ends are looked at before anything is trained."""
    with pytest.raises(IsogonError, match="study: lr · weight_decay must be at most"):
        Study.from_tables({**lab_study("texp(constant)"), "search": {"fractions": ["1/4"], "centre": 0.05, "size": 3}})
    study = Study.from_tables(lab_study("texp(constant)"))
    monkeypatch.setattr(running, "extension", lambda curve: (3.0,) if max(curve.grid) < 3 else ())
    outcome = run(study, tmp_path / "out")
    status = {row.planned.tuning_factor: row.status for row in outcome.trials}
    assert status.pop(3.0) == "failed"
    assert set(status.values()) == {"finished"}
    assert "must be at most" in next(row.error for row in outcome.trials if row.error)
    assert run(study, tmp_path / "out").to_dict() == outcome.to_dict()


@pytest.mark.parametrize("schedule", ["phases:0=0.5,1e-3", "warmup:1(phases:0=0.5,1e-3)"])
def test_a_schedule_that_ignores_the_recipe_is_refused(schedule):
    with pytest.raises(IsogonError, match="study: schedule must be one that leaves the rates to the recipe"):
        Study.from_tables(lab_study(schedule))


def test_a_fresh_start_waits_for_the_process_at_work(tmp_path, monkeypatch):
    """--fresh removes nothing from under another process, and nothing that is no study."""
    monkeypatch.setattr(checkpoints, "LOCK_PATIENCE", 0.1)
    place = tmp_path / "out"
    place.mkdir()
    (place / "thesis.tex").write_text("ten years")
    with pytest.raises(IsogonError, match="holds something other than a study"):
        run(Study.from_tables(tables("quick")), place, fresh=True)
    (place / "study.json").write_text("{}")
    lock = checkpoints.FolderLock(place)
    with pytest.raises(IsogonError, match="Another process"):
        run(Study.from_tables(tables("quick")), place, fresh=True)
    lock.release()
    assert (place / "thesis.tex").exists()


def test_objectives_that_cannot_serve(tmp_path):
    with pytest.raises(ArgumentError, match="has no attribute 'nothing'"):
        run(Study.from_tables(tables("nothing")), tmp_path / "out")
    with pytest.raises(IsogonError, match="must return a number, got 'good'"):
        run(Study.from_tables(tables("text", fractions=["1/16"], seeds=1)), tmp_path / "text")


SCRIPT = """
import json, sys
from isogon.search import Study, run
if __name__ == "__main__":
    run(Study.from_tables(json.load(open("study.json"))), sys.argv[1], progress=False)
"""


def search(tmp_path, out: str) -> subprocess.Popen[bytes]:
    (tmp_path / "go.py").write_text(SCRIPT)
    (tmp_path / "study.json").write_text(json.dumps(tables("slow")))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen([sys.executable, "go.py", out], cwd=tmp_path, env=environment, start_new_session=True)


@pytest.mark.parametrize("kills", [1, pytest.param(12, marks=pytest.mark.slow)])
def test_killed_at_any_moment_it_ends_as_if_it_had_not_been(tmp_path, no_workers, kills):
    """The driver alone, or driver and workers, with −9; no trial is counted twice, none that ended is made again."""
    draw = random.Random(kills)
    for number in range(kills):
        process = search(tmp_path, "killed")
        calls = tmp_path / "calls.txt"
        before = calls.read_text().count("\n") if calls.exists() else 0
        give_up = time.monotonic() + 60
        # Anywhere from its start to some trials later.
        wanted = before + draw.choice([0, 1, 2, 3])
        while process.poll() is None and time.monotonic() < give_up:
            if (calls.read_text().count("\n") if calls.exists() else 0) >= wanted:
                break
            time.sleep(0.01)
        time.sleep(draw.uniform(0, 0.1))
        if number % 2:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
        process.wait()
    # At once: a worker of a dead driver may still have to let go of its trial.
    run(Study.from_tables(tables("slow")), tmp_path / "killed", progress=False)
    outcome = json.loads((tmp_path / "killed" / "outcome.json").read_text())
    rows = run(Study.from_tables(tables("slow")), tmp_path / "killed").trials
    cells = [row.planned for row in rows]
    assert len(cells) == len(set(cells)) == 2 * (7 + 3)
    assert {row.status for row in rows} == {"finished"}
    # An objective that had returned is only called again if the kill fell before its result was on the disk.
    ended = (tmp_path / "calls.txt").read_text().split()
    assert len(ended) <= len(cells) + kills
    whole = run(Study.from_tables(tables("slow")), tmp_path / "whole").to_dict()
    for name in set(whole) - {"seconds"}:
        assert outcome[name] == whole[name], name
