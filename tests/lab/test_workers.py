"""Workers that wait for the next jobs instead of being started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass

import pytest

pytest.importorskip("optuna")

from isogon.lab import EpochEnded, ObjectiveEnded
from isogon.lab.engines._workers import keep_workers, work_through
from isogon.search.study._study import TaskTable
from isogon.search.trials._execution import ObjectiveJob


@pytest.fixture
def process_of(tmp_path, monkeypatch):
    """The number of the process that does a job."""
    (tmp_path / "objective_of_workers.py").write_text("import os\n\ndef number(trial):\n    return os.getpid()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("objective_of_workers", None)
    recipe = {"lr": 0.1, "weight_decay": 0.1, "batch_size": 10, "samples": 100}

    def call(key):
        events = []
        task = TaskTable(objective="objective_of_workers:number", metric="number", direction="maximize")
        job = ObjectiveJob(task.objective, task, key, recipe, 0, str(tmp_path), "cpu")
        work_through([job], workers=1, on_event=events.append)
        (event,) = events
        assert isinstance(event, ObjectiveEnded)
        return int(event.result["value"])

    return call


def lives(number):
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    return True


def test_kept_workers_serve_again_and_go_in_the_end(process_of):
    with keep_workers():
        first = process_of("a")
        assert process_of("b") == first
        os.kill(first, signal.SIGKILL)
        second = process_of("c")
        assert second != first, "one that died while it waited costs no job"
        assert lives(second)
    assert not lives(second)
    alone = process_of("d")
    assert not lives(alone), "without it none is kept"


UNGUARDED = """
from isogon.lab import Config, run_all
from isogon.recipe import Recipe

recipe = Recipe(lr=0.1, weight_decay=0.1, batch_size=10, samples=100, epochs=1)
run_all([Config(recipe=recipe, net="cnn4", data="digits", seed=seed) for seed in (0, 1)], out="runs", workers=1)
"""


def test_a_script_without_a_main_guard_is_told_so_and_fails_no_run(tmp_path):
    (tmp_path / "script.py").write_text(UNGUARDED)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.count("Traceback") == 1
    assert 'put what starts the training below if __name__ == "__main__":' in done.stderr.splitlines()[-1]
    assert not list(tmp_path.glob("runs/*/error.txt"))


@dataclass
class Blocked:
    """Says which signals are blocked in the worker."""

    keys = ("",)

    def work(self, emit):
        emit(EpochEnded("", {"blocked": [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])]}))


def test_no_interrupt_reaches_a_worker_not_even_the_first():
    events = []
    work_through([Blocked(), Blocked()], workers=2, on_event=events.append)
    assert [event.row["blocked"] for event in events] == [[signal.SIGINT]] * 2
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, []), "and none is lost here"
