"""`run_all`: every engine gives the runs of `train`; deaths and failures cost no other run."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from isogon.errors import ArgumentError
from isogon.lab import Run, load, run_all, train
from isogon.lab.engines._lanes import LanesEngine
from isogon.lab.engines._workers import keep_workers

# Runs the configs of a file in a process of its own, where optuna and pydantic cannot be imported.
DRIVER = """
import json, sys

class Refusing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("optuna", "pydantic"):
            raise ImportError(f"{name} was imported")

sys.meta_path.insert(0, Refusing())
from isogon.lab import Config, run_all

if __name__ == "__main__":
    settings = json.load(open(sys.argv[1]))
    configs = [Config.from_dict(content) for content in settings.pop("configs")]
    for run in run_all(configs, **settings, device="cpu"):
        print(run.status)
"""


DEADLY_NET = """
import os, signal

def network(*shape, **options):
    os.kill(os.getpid(), signal.SIGKILL)
"""

DOOMED_NET = """
import os
from isogon import nets

steps = 0

def network(*shape, **options):
    model = nets.cnn4(*shape, **options)

    def count(*_):
        global steps
        steps += 1
        if steps > 100:
            os._exit(137)  # as when memory is short

    model.register_forward_pre_hook(count)
    return model
"""

NAPPING_NET = """
import os, time
from torch import nn
from isogon import nets

class Napping(nn.Sequential):
    def forward(self, x):
        time.sleep(float(os.environ.get("NAP", "0")) * self.training)
        return super().forward(x)

def network(num_classes, in_channels, **options):
    return Napping(nets.cnn4(num_classes, in_channels, **options))
"""


def driven(tmp_path, configs, **settings):
    """A command line that runs `configs` below `tmp_path / "runs"`."""
    (tmp_path / "driver.py").write_text(DRIVER)
    content = {"configs": [config.to_dict() for config in configs], "out": str(tmp_path / "runs"), **settings}
    (tmp_path / "settings.json").write_text(json.dumps(content))
    return [sys.executable, str(tmp_path / "driver.py"), str(tmp_path / "settings.json")]


def children(pid):
    """Of the processes of the system those that `pid` has started, without the one that tracks shared resources."""
    pids = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
            command = (stat.parent / "cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[1]) == pid and fields[0] != "Z" and b"spawn_main" in command:
            pids.append(int(stat.parent.name))
    return pids


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for(condition, seconds=60):
    give_up = time.monotonic() + seconds
    while not (pids := condition()):
        assert time.monotonic() < give_up, "waited in vain"
        time.sleep(0.1)  # to look costs much of a core
    return pids


def weights(folder):
    return torch.load(folder / "weights.pt", weights_only=True)


def assert_same_as_alone(run, folder):
    """To the bit: as `train` leaves it in `folder`."""
    alone = train(run.config, folder, device="cpu")
    first, second = weights(run.folder), weights(folder)
    assert all(torch.equal(first[name], second[name]) for name in second)
    clock = ["images_per_second"]
    pd.testing.assert_frame_equal(run.epochs.drop(columns=clock), alone.epochs.drop(columns=clock), check_exact=True)
    if run.config.monitor_every:
        pd.testing.assert_frame_equal(run.records, alone.records, check_exact=True)


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")


@pytest.fixture
def _kept_workers():
    """The second of two calls need not start its own, which takes seconds."""
    with keep_workers():
        yield


@pytest.mark.usefixtures("_kept_workers")
@pytest.mark.usefixtures("one_thread")
def test_runs_are_those_of_train_and_a_failure_ends_no_other(make_config, tmp_path, capfd, monkeypatch):
    """One config lacks its data, one diverges, one kills the process that trains it."""
    (tmp_path / "deadly_module.py").write_text(DEADLY_NET)
    monkeypatch.syspath_prepend(tmp_path)
    lacking = make_config(data=f"npz:{tmp_path / 'images.npz'}")
    diverging, deadly = make_config(lr=1e38), make_config(net="deadly_module:network")
    good = [make_config(seed=seed) for seed in (1, 2)]
    configs = [good[0], lacking, diverging, deadly, good[1]]
    runs = run_all(configs, out=tmp_path / "runs", workers=1, device="cpu")
    assert [run.status for run in runs] == ["finished", "failed", "diverged", "failed", "finished"]
    assert [run.config for run in runs] == configs
    for run in (runs[0], runs[4]):
        assert_same_as_alone(run, tmp_path / "alone" / run.config.name)
    assert "images.npz does not exist" in runs[1].error
    assert runs[3].error == "its worker ended 2 times, last with exit code -9"
    for run in (runs[1], runs[3]):
        assert run.error == (run.folder / "error.txt").read_text()
        assert np.isnan(run.accuracy)
        assert len(run.epochs) == 0

    # Not a terminal: a line a run, on stderr.
    out, lines = capfd.readouterr()
    assert out == ""
    lines = lines.splitlines()
    assert [line.split(",")[0] for line in lines] == [f"{count} of 5 runs" for count in range(1, 6)]
    endings = [next(line for line in lines if config.name in line) for config in configs]
    assert re.search(r": loss \d\.\d{3}, test \d+\.\d %$", endings[0])
    assert "images.npz does not exist" in endings[1]
    assert endings[2].endswith(": diverged")
    assert endings[3].endswith(": its worker ended 2 times, last with exit code -9")

    # The same call reads what has ended and tries what failed again, whose fault has been mended.
    ended = {run.config: (run.folder / "result.json").stat().st_mtime_ns for run in (runs[0], runs[2], runs[4])}
    digits = load("digits")
    arrays = {"train_x": digits.train_x[:, 0], "train_y": digits.train_y, "test_x": digits.test_x[:, 0]}
    np.savez(tmp_path / "images.npz", test_y=digits.test_y.numpy(), **{name: a.numpy() for name, a in arrays.items()})
    again = run_all([lacking, *ended], out=tmp_path / "runs", workers=1, device="cpu")
    assert again[0].status == "finished"
    assert not (again[0].folder / "error.txt").exists()
    assert {run.config: (run.folder / "result.json").stat().st_mtime_ns for run in again[1:]} == ended
    assert capfd.readouterr().err.startswith(f"4 of 4 runs, {lacking.name}: loss")


@needs_proc
@pytest.mark.usefixtures("one_thread")
def test_killed_workers_and_drivers(make_config, tmp_path, monkeypatch):
    """One worker is killed and its run resumes; then the driver, and no worker outlives it; then all ends."""
    (tmp_path / "napping_module.py").write_text(NAPPING_NET)
    monkeypatch.syspath_prepend(tmp_path)
    net = "napping_module:network"
    configs = [
        make_config(net=net, monitor_every=0, seed=seed, epochs=epochs) for seed, epochs in ((0, 1), (1, 80), (2, 80))
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    command = driven(tmp_path, configs, workers=2, progress=False)
    folders = [tmp_path / "runs" / config.name for config in configs]
    # Naps make the runs long and cost nothing: longer than a loaded machine takes to start a worker.
    driver = subprocess.Popen(command, env={**environment, "NAP": "0.25"}, stderr=subprocess.PIPE)
    try:
        wait_for(lambda: (folders[0] / "result.json").exists())
        wait_for(lambda: all((folder / "checkpoint.pt").exists() for folder in folders[1:]))
        workers = children(driver.pid)
        assert len(workers) == 2
        os.kill(workers[0], signal.SIGKILL)
        new = wait_for(lambda: [pid for pid in children(driver.pid) if pid not in workers])
        at_kill = [epochs_in(folder) for folder in folders[1:]]
        # Both runs resume: the killed one from its checkpoint, in a new worker.
        wait_for(lambda: all(epochs_in(folder) > before for folder, before in zip(folders[1:], at_kill, strict=True)))
        assert not any((folder / "result.json").exists() for folder in folders[1:])
    finally:
        driver.kill()
        driver.wait()
        driver.stderr.close()
    wait_for(lambda: not any(alive(pid) for pid in [workers[1], *new]), seconds=30)
    time.sleep(0.2)
    left = [epochs_in(folder) for folder in folders[1:]]
    time.sleep(0.5)
    assert [epochs_in(folder) for folder in folders[1:]] == left
    before = (folders[0] / "result.json").stat().st_mtime_ns

    runs = run_all(configs, out=tmp_path / "runs", workers=1, device="cpu", progress=False)
    assert [run.status for run in runs] == ["finished"] * 3
    assert (folders[0] / "result.json").stat().st_mtime_ns == before
    for run in runs:
        assert_same_as_alone(run, tmp_path / "alone" / run.config.name)


def epochs_in(folder):
    """Epochs ended so far."""
    # Read at once: pyarrow opens a file twice, and it is replaced all the time.
    return len(pd.read_parquet(io.BytesIO((folder / "epochs.parquet").read_bytes())))


def test_lanes_uninstalled_without_the_packages_of_the_search(make_config, tmp_path):
    """With a bar on a terminal; the results are those of `train`, but for rounding."""
    configs = [make_config(precision="float64", seed=seed) for seed in range(3)]
    configs.append(make_config(seed=4))  # of another precision: alone
    source = str(Path(sys.modules["isogon"].__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": source, "TERM": "xterm", "COLUMNS": "160"}
    command = driven(tmp_path, configs, engine="lanes", workers=1)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=theirs, text=True)
    os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 4096)
        except OSError:  # the other side is closed
            break
        if not part:
            break
        shown += part
    os.close(ours)
    output, _ = process.communicate()
    assert process.returncode == 0, shown.decode()
    assert output.split() == ["finished"] * 4
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode())
    assert "━" in text
    assert "12/12" in text
    assert "4 of 4 runs" in text
    for config in configs:
        run = Run.read(tmp_path / "runs" / config.name)
        alone = train(config, device="cpu")
        assert run.accuracy == pytest.approx(alone.accuracy, abs=0.01)
        if config.precision == "float64":
            pd.testing.assert_frame_equal(run.records, alone.records, rtol=1e-9, atol=1e-9)


def test_lanes_of_a_gpu_begin_with_the_longest_and_are_of_one_network(make_config):
    small, large, other = make_config(samples=100), make_config(samples=300), make_config(options={"width": 5})
    longer = make_config(samples=100, epochs=50)
    lanes = LanesEngine()
    units = lanes.units([small, other, large, longer], workers=1, device="cuda", shared=False)
    assert units == [[longer, large, small], [other]]
    shared = lanes.units([small] * 20, workers=1, device="cuda:1", shared=True)
    assert [len(unit) for unit in shared] == [8, 8, 4]


def test_bad_calls(make_config, tmp_path):
    config = make_config()
    with pytest.raises(ArgumentError, match="configs must be all different"):
        run_all([config, config], out=tmp_path)
    with pytest.raises(ArgumentError, match="engine must be one of local, lanes"):
        run_all([config], "slurm", tmp_path)
    with pytest.raises(ArgumentError, match="workers must be a whole number"):
        run_all([config], out=tmp_path, workers=0)
    assert run_all([], out=tmp_path) == []
    assert not list(tmp_path.iterdir())


def test_what_had_ended_when_its_worker_died_is_no_failure(make_config, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "doomed.py").write_text(DOOMED_NET)
    configs = [make_config(net="doomed.py:network", epochs=epochs, monitor_every=0) for epochs in (1, 2, 400)]
    runs = run_all(configs, "lanes", tmp_path / "runs", workers=1, device="cpu", progress=False)
    assert [run.status for run in runs] == ["finished", "finished", "failed"]
    assert "its worker ended 2 times" in runs[2].error
