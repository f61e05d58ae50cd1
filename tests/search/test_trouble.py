"""A full disk and trials that fail: one clear sentence, nothing recorded for the disk's fault, and the way on."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess

import pytest

from isogon.cli import main
from isogon.lab import Config, run_all
from isogon.lab._disk_space import DiskFullError, full_disk
from isogon.recipe import Recipe
from isogon.search import Study, run
from isogon.search._status import Progress
from isogon.search.trials import _storage as storage

OBJECTIVES = """
import math, os
from pathlib import Path
import torch

def curve(trial):
    noise = 0.002 * math.sin(12.9898 * trial.seed + 78.233 * math.log(trial.recipe.tuning_factor))
    return 0.9 - 0.02 * math.log2(trial.recipe.tuning_factor / 0.1) ** 2 + noise

def quick(trial):
    return curve(trial)

def writing(trial):
    (trial.folder / "checkpoint").write_bytes(bytes(200_000))
    return curve(trial)

def saving(trial):
    torch.save(torch.zeros(50_000), trial.folder / "checkpoint")
    return curve(trial)

def unlucky(trial):
    if trial.seed == 1 and not Path("mended").exists():
        raise ValueError("no luck")
    if trial.recipe.tuning_factor > 0.5:
        return float("nan")
    return curve(trial)
"""

STUDY = """
[recipe]
lr = 0.1
weight_decay = "?"
batch_size = 50
samples = 1600
epochs = 5

[task]
objective = "objectives_in_trouble:{name}"

[search]
fractions = ["1/16"]
seeds = 2

[run]
workers = 1
"""

FULL = r"No space left on \S+: free some, and the same command resumes\."


@pytest.fixture(autouse=True)
def _where_the_objectives_are(put_module):
    put_module("objectives_in_trouble", OBJECTIVES)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of its own with 1 MiB, and a function that makes it larger."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = shutil.which("mount")
    command = [mount or "mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    if mount is None or os.getuid() or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a small file system")
    yield place, lambda: subprocess.run([mount, "-o", "remount,size=50m", str(place)], check=True)
    subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.fixture
def isogon(capsys):
    """Run the command line in this process: (exit code, stdout, stderr)."""

    def call(*arguments):
        with pytest.raises(SystemExit) as stop:
            main([str(argument) for argument in arguments])
        return stop.value.code, *capsys.readouterr()

    return call


def study(name: str) -> Study:
    file = f"{name}.toml"
    with open(file, "w") as target:
        target.write(STUDY.replace("{name}", name))
    return Study.read(file)


def test_a_worker_without_room_stops_the_command(small_disk, isogon, request):
    """With a real worker, from the command line, until there is room."""
    place, enlarge = small_disk
    study("writing")
    code, _, err = isogon("search", "writing.toml", "--out", place / "out")
    assert code == 2
    assert re.fullmatch(FULL, err.splitlines()[-1])
    assert "Traceback" not in err
    rows = Progress.read(place / "out").trials
    assert {row.status for row in rows} == {"finished", "running", "waiting"}
    ended = [row for row in rows if row.status == "finished"]
    enlarge()
    request.getfixturevalue("no_workers")  # the way on is the same for them
    code, out, _ = isogon("search", "writing.toml", "--out", place / "out")
    assert code == 0
    assert "failed" not in out
    rows = Progress.read(place / "out").trials
    assert {row.status for row in rows} == {"finished"}
    assert rows[: len(ended)] == ended


def test_a_writer_that_does_not_say_why_it_failed(small_disk, no_workers, tmp_path):
    """As torch's: a RuntimeError about positions. The database, on another disk, could have taken it down as failed."""
    place, enlarge = small_disk
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "trials").symlink_to(place)
    with pytest.raises(DiskFullError, match=FULL):
        run(study("saving"), tmp_path / "out")
    assert "failed" not in {row.status for row in Progress.read(tmp_path / "out").trials}
    enlarge()
    assert run(study("saving"), tmp_path / "out").lost["failed"] == 0


def test_however_little_room_there_is(small_disk, no_workers):
    """The folder, the database or the result may not fit: it ends, or says so; in the end nothing is lost."""
    place, _ = small_disk
    messages = []
    for room in (0, 4, 8, 60, 100, 140, 180, 220, 260, 300, 400):
        ballast = place / "ballast"
        ballast.unlink(missing_ok=True)
        free = shutil.disk_usage(place).free
        ballast.write_bytes(bytes(max(0, free - room * 1024)))
        try:
            run(study("quick"), place / "out")
            messages.append("ended")
        except DiskFullError as error:
            messages.append(str(error))
    assert {re.fullmatch(FULL, message) is not None for message in messages if message != "ended"} == {True}
    (place / "ballast").unlink()
    outcome = run(study("quick"), place / "out")
    assert outcome.lost["failed"] == 0
    assert len(outcome.trials) == 14


def test_trainings_of_the_lab_wait_for_room(small_disk, no_workers):
    place, enlarge = small_disk
    recipe = Recipe(lr=0.1, weight_decay=1e-3, batch_size=50, samples=200, epochs=3)
    options = {"width": 4, "scale_invariant": "affine", "norm": "ghost"}
    configs = [
        Config(recipe=recipe, net="cnn4", net_options=options, data="digits", augmentation="none", seed=seed)
        for seed in range(2)
    ]
    (place / "ballast").write_bytes(bytes(shutil.disk_usage(place).free - 100_000))
    with pytest.raises(DiskFullError, match=FULL):
        run_all(configs, out=place / "runs", device="cpu", progress=False)
    assert not list((place / "runs").glob("*/error.txt"))
    enlarge()
    assert {trained.status for trained in run_all(configs, out=place / "runs", device="cpu", progress=False)} == {
        "finished"
    }


def test_what_is_a_full_disk_and_what_is_not(tmp_path):
    quota = OSError(errno.EDQUOT, "Disk quota exceeded", str(tmp_path / "sub" / "file"))
    wrapped = RuntimeError("could not be written")
    wrapped.__cause__ = quota
    assert full_disk(wrapped, tmp_path) == str(tmp_path / "sub")
    assert full_disk(OSError(errno.ENOSPC, "No space left on device"), tmp_path) == str(tmp_path)
    assert full_disk(RuntimeError("(sqlite3.OperationalError) database or disk is full"), tmp_path) == str(tmp_path)
    assert full_disk(OSError(errno.EACCES, "Permission denied"), tmp_path) is None
    assert full_disk(ValueError("no luck"), tmp_path / "not" / "there") is None


def test_a_database_that_does_not_answer_ends_the_command_with_a_sentence(isogon, monkeypatch, tmp_path):
    pytest.importorskip("psycopg")
    monkeypatch.setattr(storage, "PATIENCE", 0.3)
    study("quick")
    file = tmp_path / "quick.toml"
    file.write_text(file.read_text() + 'storage = "postgresql://me:secret@127.0.0.1:1/db"\n')
    code, out, err = isogon("search", file, "--out", "out")
    assert code == 2
    assert re.fullmatch(
        r"The storage \S+://me:\*\*\*@127.0.0.1:1/db does not answer .*the same command resumes.*\n", err
    )
    assert "does not answer; asking again" in out
    assert "secret" not in out + err


def test_failed_trials_are_tried_again_when_asked(isogon, no_workers, tmp_path):
    study("unlucky")
    code, out, _ = isogon("search", "unlucky.toml", "--out", "out")
    assert code == 0
    assert "7 failed: the same command with --retry tries them again.\n" in out
    (tmp_path / "mended").touch()
    code, _, err = isogon("search", "unlucky.toml", "--out", "out", "--json")
    assert code == 0
    assert "7 failed: the same command with --retry" in err
    before = Progress.read("out").trials
    code, out, _ = isogon("search", "unlucky.toml", "--out", "out", "--retry")
    assert code == 0
    assert "7 failed trials are tried again" in out
    assert "with --retry" not in out
    rows = Progress.read("out").trials
    assert sorted((row.planned.tuning_factor, row.planned.seed) for row in rows) == sorted(
        (row.planned.tuning_factor, row.planned.seed) for row in before
    )
    assert {row.planned.seed: row.status for row in rows if row.planned.tuning_factor > 0.5} == {
        0: "diverged",
        1: "diverged",
    }
    ended = [row for row in before if row.status != "failed"]
    assert [row for row in rows if row.number <= max(row.number for row in ended)] == ended, "no other was made again"
    assert {row.status for row in rows} == {"finished", "diverged"}
    code, _, _ = isogon("search", "unlucky.toml", "--out", "out", "--retry")
    assert Progress.read("out").trials == rows
