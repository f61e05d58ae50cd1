"""A run that is killed, stopped, or out of disk at any moment ends as if nothing had happened."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest
import torch

from isogon.dynamics import RunFolder
from isogon.errors import ArgumentError, IsogonError
from isogon.lab import Run, train
from isogon.lab.run import _checkpoints as checkpoints
from isogon.lab.run._checkpoints import FolderLock

# Trains once undisturbed; then in another folder, in children that die as the list of deaths says, until one ends.
# Children are forked, so that torch is imported once, and from a process of its own, which has never used a GPU.
KILLER = """
import json, os, pathlib, resource, signal, sys, time
from isogon.errors import IsogonError
from isogon.lab import Config, train

settings = json.loads(sys.argv[1])
config = Config.from_dict(settings["config"])

def trained(folder, **options):
    return train(config, folder, device="cpu", checkpoint_every=settings["checkpoint_every"], progress=False, **options)

def die_at_write(name, after):
    replace = pathlib.Path.replace
    def deadly(self, target):
        due = target.name.startswith(name)
        if due and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = replace(self, target)
        if due:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    pathlib.Path.replace = deadly

def fill_the_disk(row):
    if len(reported := globals().setdefault("reported", [])) == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (death[1], death[1]))
    reported.append(row)

def child():
    options = {}
    if death[0] == "write":
        die_at_write(*death[1:])
    if death[0] == "full":
        options["report"] = fill_the_disk
    try:
        trained(settings["parts"], **options)
    except (IsogonError, OSError) as error:
        os.write(speak, str(error).encode())
        os._exit(3)
    os._exit(0)

trained(settings["whole"])
for death in [*settings["deaths"], ["none"]]:
    listen, speak = os.pipe()
    pid = os.fork()
    if pid == 0:
        child()
    if death[0] == "time":
        time.sleep(death[1])
        os.kill(pid, signal.SIGKILL)
    status = os.waitpid(pid, 0)[1]
    os.close(speak)
    message = os.read(listen, 10_000).decode()
    print(json.dumps({"death": death, "status": os.waitstatus_to_exitcode(status), "said": message}))
"""


@pytest.fixture
def deaths(make_config, tmp_path):
    """Trains through a list of deaths; what was printed, and the two folders."""

    def suffer(listed, *, checkpoint_every=1, **changes):
        config = make_config(augmentation="crop-flip", save_predictions=True, **changes)
        settings = {"config": config.to_dict(), "deaths": listed, "checkpoint_every": checkpoint_every}
        settings |= {"whole": str(tmp_path / "whole"), "parts": str(tmp_path / "parts")}
        # One thread: a child that is forked from a process with several hangs in the first product.
        alone = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        environment = {**os.environ, **alone, "CUDA_VISIBLE_DEVICES": ""}
        ended = subprocess.run(
            [sys.executable, "-c", KILLER, json.dumps(settings)], env=environment, capture_output=True, text=True
        )
        assert ended.returncode == 0, ended.stderr
        lines = [json.loads(line) for line in ended.stdout.splitlines()]
        return lines, Run.read(tmp_path / "whole"), Run.read(tmp_path / "parts")

    return suffer


def assert_same(whole, parts):
    """To the bit, but for the clock."""
    first, second = (torch.load(run.folder / "weights.pt", weights_only=True) for run in (whole, parts))
    assert list(first) == list(second)
    assert all(torch.equal(first[name], second[name]) for name in first)
    pd.testing.assert_frame_equal(parts.records, whole.records, check_exact=True)
    clock = ["images_per_second"]
    pd.testing.assert_frame_equal(parts.epochs.drop(columns=clock), whole.epochs.drop(columns=clock), check_exact=True)
    assert parts.predictions.tolist() == whole.predictions.tolist()
    assert sorted(file.name for file in parts.folder.iterdir()) == sorted(file.name for file in whole.folder.iterdir())


# Just before and just after a file is put in place: those of every epoch, and those of the end.
WRITES = [
    ["write", name, after]
    for name in ("config", "run", "records.part", "epochs", "checkpoint")
    for after in (False, True)
]
LAST_WRITES = [
    *(["write", name, after] for name in ("records.parquet", "weights", "predictions") for after in (False, True)),
    ["write", "result", False],  # after it, the run has ended
]
# Writes beyond so many bytes fail in earnest, as on a full disk: of the checkpoint, then of any table before it.
FULL = [["full", 20_000], ["full", 500]]
# Seconds after a child's start.
TIMES = [["time", seconds] for seconds in (0.02, 0.19, 0.11, 0.15, 0.07)]


def kills(lines, kind):
    return [line["status"] for line in lines if line["death"][0] == kind].count(-signal.SIGKILL)


def test_killed_at_any_moment_it_ends_the_same(deaths):
    lines, whole, parts = deaths([*FULL, *WRITES, *TIMES, *LAST_WRITES], epochs=120)
    assert kills(lines, "write") == len(WRITES) + len(LAST_WRITES)
    assert kills(lines, "time") > 0
    assert_same(whole, parts)
    full = [line for line in lines if line["death"][0] == "full"]
    assert [line["status"] for line in full] == [3, 3]
    assert (
        "checkpoint.pt could not be written (File too large): make room there, or choose another place."
        in full[0]["said"]
    )
    assert "File too large" in full[1]["said"]


@pytest.mark.slow
@pytest.mark.parametrize("checkpoint_every", [1, 3])
def test_killed_at_very_many_moments_it_ends_the_same(deaths, checkpoint_every):
    times = [["time", 0.01 + 0.3 * (step * 0.618 % 1)] for step in range(60)]
    lines, whole, parts = deaths([*WRITES, *times, *LAST_WRITES], checkpoint_every=checkpoint_every, epochs=250)
    assert kills(lines, "time") > 20
    assert_same(whole, parts)


def stop_after(epoch):
    def report(row):
        if row["epoch"] == epoch:
            raise KeyboardInterrupt

    return report


@pytest.fixture
def stopped(make_config, tmp_path):
    """A config and a folder in which it was stopped after two of three epochs."""
    config = make_config()
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "run", device="cpu", report=stop_after(1))
    return config, tmp_path / "run"


def test_what_a_killed_process_left_half_written_is_cleared_away(stopped):
    config, folder = stopped
    for name in (".checkpoint.pt.12345.partial", ".epochs.parquet.12345.partial"):
        (folder / name).write_bytes((folder / "checkpoint.pt").read_bytes()[:1000])
    seen = []
    assert train(config, folder, device="cpu", report=seen.append).status == "finished"
    assert [row["epoch"] for row in seen] == [2]
    assert not list(folder.glob("*.partial"))
    assert not list(folder.glob(".*.partial"))


@pytest.mark.parametrize("damage", ["empty", "start", "half", "nonsense", "list"])
def test_a_run_with_a_damaged_checkpoint_starts_again_and_ends_the_same(stopped, tmp_path, damage):
    config, folder = stopped
    file = folder / "checkpoint.pt"
    whole, other = file.read_bytes(), io.BytesIO()
    torch.save([1, 2], other)
    contents = {"empty": b"", "start": whole[:3000], "half": whole[: len(whole) // 2], "nonsense": b"nonsense" * 100}
    file.write_bytes(contents.get(damage, other.getvalue()))
    assert_starts_again(config, folder, tmp_path, r"checkpoint.pt. The run starts again")


def test_a_bit_turned_over_in_a_checkpoint_is_noticed(stopped, tmp_path):
    """Within a tensor: torch would load it, and the run would go on from other weights."""
    config, folder = stopped
    file = folder / "checkpoint.pt"
    state = torch.load(file, weights_only=True)
    weight = next(value for value in state["model"].values() if value.numel() > 20).numpy().tobytes()
    content = bytearray(file.read_bytes())
    content[content.index(weight) + 3] ^= 64
    file.write_bytes(content)
    assert not torch.equal(*(torch.cat([v.flatten().double() for v in s["model"].values()])
                             for s in (state, torch.load(file, weights_only=True))))  # fmt: skip
    assert_starts_again(config, folder, tmp_path, r"checkpoint.pt. The run starts again")


def test_a_checkpoint_that_lacks_something_is_damaged(stopped, tmp_path):
    config, folder = stopped
    file = folder / "checkpoint.pt"
    state = torch.load(file, weights_only=True)
    del state["driver"]
    torch.save(state, file)
    assert_starts_again(config, folder, tmp_path, r"checkpoint.pt, which lacks driver. The run starts again")


def test_a_bit_turned_over_in_the_records_is_noticed(stopped, tmp_path):
    """In the middle of a page of numbers, which compresses to nothing that pyarrow would miss."""
    config, folder = stopped
    file = folder / "epochs.parquet"
    content = bytearray(file.read_bytes())
    losses = np.asarray(pd.read_parquet(file)["train_loss"]).tobytes()
    content[content.index(losses[:8]) + 1] ^= 1
    file.write_bytes(content)
    assert_starts_again(config, folder, tmp_path, r"epochs.parquet.damaged.* The run starts again")


@pytest.mark.parametrize("name", ["records.part-000000.parquet", "epochs.parquet"])
def test_a_run_with_damaged_records_starts_again_and_ends_the_same(stopped, tmp_path, name):
    config, folder = stopped
    os.truncate(folder / name, (folder / name).stat().st_size // 2)
    assert_starts_again(config, folder, tmp_path, f"{name}.damaged.* The run starts again")
    assert not list(folder.glob("*.damaged"))


def test_damage_that_a_killed_process_had_set_aside_is_still_damage(stopped, tmp_path):
    """Killed after the damaged part was renamed and before anything was made again."""
    config, folder = stopped
    part = folder / "records.part-000000.parquet"
    os.truncate(part, part.stat().st_size // 2)
    with pytest.warns(UserWarning, match="cannot be read"):
        RunFolder(folder)
    assert_starts_again(config, folder, tmp_path, "records.part-000000.parquet.damaged. The run starts again")


def test_a_run_whose_table_of_epochs_is_gone_starts_again(stopped, tmp_path):
    config, folder = stopped
    (folder / "epochs.parquet").unlink()
    assert_starts_again(config, folder, tmp_path, "the table of epochs, which is not complete. The run starts again")


def assert_starts_again(config, folder, tmp_path, message):
    seen = []
    with pytest.warns(UserWarning, match=message):
        run = train(config, folder, device="cpu", report=seen.append)
    assert [row["epoch"] for row in seen] == [0, 1, 2]
    alone = train(config, tmp_path / "alone", device="cpu")
    timeless = run.epochs.drop(columns="images_per_second")
    pd.testing.assert_frame_equal(timeless, alone.epochs.drop(columns="images_per_second"))
    pd.testing.assert_frame_equal(run.records, alone.records)


@pytest.mark.parametrize("name", ["result.json", "config.json", "epochs.parquet"])
def test_an_ended_run_with_a_damaged_file_is_trained_again(make_config, tmp_path, name):
    config = make_config()
    before = train(config, tmp_path / "run", device="cpu")
    for content in (b"", b"{", b"\xff\xfe", b"[" * 100_000, b"{}", b'{"recipe": 3}'):
        (tmp_path / "run" / name).write_bytes(content)
        with pytest.warns(UserWarning, match="are damaged: it is trained again"):
            after = train(config, tmp_path / "run", device="cpu")
        assert after.accuracy == before.accuracy
        assert len(after.epochs) == 3


def test_a_checkpoint_carries_no_code(stopped):
    config, folder = stopped

    class Harm:
        def __reduce__(self):
            return os.mkdir, (str(folder / "harm"),)

    torch.save({"key": Harm()}, folder / "checkpoint.pt")
    with pytest.warns(UserWarning, match=r"checkpoint.pt. The run starts again"):
        train(config, folder, device="cpu")
    assert not (folder / "harm").exists()


def test_the_folder_and_data_of_another_run_are_refused(stopped, make_config, tmp_path):
    config, folder = stopped
    with pytest.raises(ArgumentError, match="out must be empty or the folder of the same config"):
        train(make_config(seed=1), folder, device="cpu")
    (folder / "config.json").unlink()
    with pytest.raises(ArgumentError, match="out must be empty or the folder of the same config"):
        train(make_config(seed=1), folder, device="cpu")
    (folder / "config.json").unlink()
    state = torch.load(folder / "checkpoint.pt", weights_only=True)
    torch.save({**state, "data": "another"}, folder / "checkpoint.pt")
    with pytest.raises(ArgumentError, match="data must be that with which the run started, got 'digits'"):
        train(config, folder, device="cpu")
    (tmp_path / "file").write_text("")
    with pytest.raises(ArgumentError, match="out must be a folder we can make"):
        train(config, tmp_path / "file", device="cpu")


def test_one_process_at_a_time(stopped, monkeypatch):
    config, folder = stopped
    monkeypatch.setattr(checkpoints, "LOCK_PATIENCE", 0.3)
    other = FolderLock(folder)
    before = (folder / "checkpoint.pt").read_bytes()
    with pytest.raises(IsogonError, match=r"Another process trains in .*: wait for it, or choose another") as refusal:
        train(config, folder, device="cpu")
    assert "\n" not in str(refusal.value)
    assert (folder / "checkpoint.pt").read_bytes() == before
    other.release()
    assert train(config, folder, device="cpu").status == "finished"


def test_ctrl_c_at_the_command_line(make_config, tmp_path, monkeypatch):
    """A real process: it holds the folder while it trains, and stops with a word and no trace."""
    config = make_config(epochs=4000, monitor_every=0)
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict()))
    command = [sys.executable, "-m", "isogon.lab", str(tmp_path / "config.json"), str(tmp_path / "run")]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Tests that a shell runs in the background inherit that Ctrl-C is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        give_up = time.monotonic() + 60
        while not (tmp_path / "run" / "checkpoint.pt").exists():
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < give_up
            time.sleep(0.02)
        monkeypatch.setattr(checkpoints, "LOCK_PATIENCE", 0.1)
        with pytest.raises(IsogonError, match="Another process trains in"):
            train(config, tmp_path / "run", device="cpu")
        process.send_signal(signal.SIGINT)
        output, message = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert output == ""
    assert message == f"Stopped; the same command resumes from the last checkpoint in {tmp_path / 'run'}.\n"
    epochs = []

    def stop(row):
        epochs.append(row["epoch"])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "run", device="cpu", report=stop)
    assert epochs[0] > 0


def test_records_without_a_checkpoint_are_made_again(make_config, tmp_path, recwarn):
    """A run that was killed before its first checkpoint leaves some; nobody wants a copy or a warning."""
    config = make_config(monitor_every=2)
    whole = train(config, tmp_path / "whole", device="cpu", progress=False)
    (tmp_path / "killed").mkdir()
    shutil.copy(tmp_path / "whole" / "records.parquet", tmp_path / "killed" / "records.part-000007.parquet")
    again = train(config, tmp_path / "killed", device="cpu", progress=False)
    pd.testing.assert_frame_equal(again.records, whole.records)
    names = {file.name for file in (tmp_path / "killed").iterdir()}
    assert names == {file.name for file in (tmp_path / "whole").iterdir()}
    assert not [warning for warning in recwarn if "holds another run" in str(warning.message)]


def test_a_folder_whose_config_file_has_a_wrong_digit_is_still_known_by_its_checkpoint(stopped, make_config, tmp_path):
    config, folder = stopped
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**content, "seed": content["seed"] + 1}))
    seen = []
    assert train(config, folder, device="cpu", report=seen.append).status == "finished"
    assert [row["epoch"] for row in seen] == [2]
    with pytest.raises(ArgumentError, match="empty or the folder of the same config"):
        train(make_config(seed=99), folder, device="cpu")
