"""Records on disk: parts, merging, killed processes, and files that are not records."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest
import torch

from isogon import Recipe
from isogon.dynamics import SCHEMA, Monitor, RunFolder, read, read_epochs, read_run
from isogon.dynamics.record._tables import join_tables, table
from isogon.errors import ArgumentError


def rows(steps: range, layers: tuple[str, ...] = ("a", "all"), **columns: float) -> pd.DataFrame:
    """Rows in the schema for these steps, with NaN in every column not given."""
    step = np.repeat(list(steps), len(layers))
    values = dict.fromkeys(SCHEMA, np.nan) | {"in_equilibrium": None} | columns
    return table(pd.DataFrame({**values, "step": step, "epoch": step // 10, "layer": list(layers) * len(steps)}))


def test_parts_and_the_merged_file_read_alike(tmp_path):
    folder = RunFolder(tmp_path / "run")
    parts = [rows(range(10 * i, 10 * i + 10), norm=float(i)) for i in range(3)]
    for part in parts:
        folder(part)
    whole = pd.concat(parts, ignore_index=True)
    assert len(list((tmp_path / "run").glob("records.part-*.parquet"))) == 3
    pd.testing.assert_frame_equal(read(tmp_path / "run"), whole)
    folder.close()
    assert sorted(file.name for file in (tmp_path / "run").iterdir()) == ["records.parquet"]
    pd.testing.assert_frame_equal(read(tmp_path / "run"), whole)
    pd.testing.assert_frame_equal(read(str(tmp_path / "run" / "records.parquet")), whole)


def test_a_continued_folder_holds_both_runs(tmp_path):
    first = RunFolder(tmp_path)
    first(rows(range(10), norm=1.0))
    first.close()
    second = RunFolder(tmp_path)
    second(rows(range(5, 15), norm=2.0))  # resumed from a checkpoint at step 5
    for records in (read(tmp_path), (second.close(), read(tmp_path))[1]):
        assert records.step.tolist() == [s for s in range(15) for _ in range(2)]
        assert records.norm.tolist() == [1.0] * 10 + [2.0] * 20


def test_a_step_in_two_pieces_becomes_one_row():
    """Its own norm, from before it moved, goes before the one at the epoch's end."""
    step_part, epoch_part = rows(range(1), step_angle=0.1, norm=1.0), rows(range(1), epoch_angle=0.5, norm=1.1)
    whole = join_tables([step_part, epoch_part])
    assert whole[["step_angle", "epoch_angle", "norm"]].values.tolist() == [[0.1, 0.5, 1.0]] * 2
    assert whole.dtypes.tolist() == [pd.Series(dtype=kind).dtype for kind in SCHEMA.values()]


def test_what_is_no_record_is_refused(tmp_path):
    with pytest.raises(ArgumentError, match="check the path"):
        read(tmp_path)
    with pytest.raises(ArgumentError, match="check the path"):
        read(tmp_path / "nowhere")
    (tmp_path / "text.parquet").write_text("no parquet")
    with pytest.raises(ArgumentError, match="a Parquet file"):
        read(tmp_path / "text.parquet")
    pd.DataFrame({"step": [1]}).to_parquet(tmp_path / "other.parquet")
    with pytest.raises(ArgumentError, match="no column epoch"):
        read(tmp_path / "other.parquet")


def test_a_folder_knows_its_run_and_its_epochs(make_task, tmp_path):
    task = make_task()
    optimizer = torch.optim.SGD(task.parameters, lr=0.1, momentum=0.9, weight_decay=5e-4)
    folder = RunFolder(tmp_path / "first", name="a/b <c>")
    with Monitor(task.model, optimizer, batch_size=32, samples=64, inputs=task.inputs[:4], sinks=[folder]) as monitor:
        for epoch in range(3):
            task.train(optimizer, 2, start=2 * epoch)
            monitor.end_epoch(loss=1 / (epoch + 1), accuracy=0.5)
    run = read_run(tmp_path / "first")
    assert run["name"] == "a/b <c>"
    assert Recipe(**run["recipe"]) == Recipe.from_optimizer(optimizer, batch_size=32, samples=64)
    assert run["layers"] == monitor.records.layer.unique().tolist()
    assert json.loads((tmp_path / "first" / "run.json").read_text()) == run
    pd.testing.assert_frame_equal(read_epochs(tmp_path / "first"), monitor.epochs)
    pd.testing.assert_frame_equal(read(tmp_path / "first"), monitor.records)
    assert read_epochs(tmp_path).empty
    assert read_run(tmp_path) == {}


SCRIPT = """
import sys, time
import torch
from torch import nn
from isogon.dynamics import Monitor, RunFolder

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.LayerNorm(8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.01)
monitor = Monitor(model, optimizer, batch_size=4, samples=20, every_steps=1, sinks=[RunFolder(sys.argv[1])])
step = 0
while True:
    optimizer.zero_grad()
    (model(torch.randn(4, 8)) * torch.randn(4, 8)).sum().backward()
    optimizer.step()
    step += 1
    print(step, flush=True)
"""


def test_a_killed_process_loses_an_epoch_at_most(tmp_path):
    script, run = tmp_path / "train.py", tmp_path / "run"
    script.write_text(SCRIPT)
    process = subprocess.Popen([sys.executable, str(script), str(run)], stdout=subprocess.PIPE, text=True)
    try:
        for line in process.stdout:
            if int(line) >= 43:
                break
        time.sleep(0.02)
    finally:
        os.kill(process.pid, signal.SIGKILL)
    last = [int(line) for line in process.stdout.read().split()]
    process.wait()
    steps_made = max([43, *last[:-1]])  # the last line may be cut short
    records = read(run)
    assert records.step.max() >= steps_made - 5 - 1
    assert sorted(records.step.unique()) == list(range(records.step.max() + 1))
    assert records.query("layer == 'all'").epoch_angle.notna().sum() == (records.step.max() + 1) // 5


def test_a_folder_killed_while_it_merged_is_read_as_one(tmp_path):
    """Merged file and parts side by side, and a temporary file half written."""
    folder = RunFolder(tmp_path)
    folder(rows(range(10), norm=1.0))
    whole = read(tmp_path)
    whole.to_parquet(tmp_path / "records.parquet")
    (tmp_path / ".records.part-000001.parquet.77.partial").write_bytes(b"PAR1")
    pd.testing.assert_frame_equal(read(tmp_path), whole)


def test_a_run_that_starts_again_in_a_used_folder_leaves_the_first_one_whole(make_task, tmp_path):
    def watch(lr, epochs, state=None):
        task = make_task(width=4, samples=64)
        optimizer = torch.optim.SGD(task.parameters, lr=lr, weight_decay=1e-3)
        sinks = [RunFolder(tmp_path / "run")]
        with Monitor(task.model, optimizer, batch_size=16, samples=64, sinks=sinks, every_steps=1) as monitor:
            if state is not None:
                monitor.load_state_dict(state)
            task.train(optimizer, 4 * epochs)
        return monitor.state_dict()

    watch(0.1, 3)
    first = read(tmp_path / "run")
    with pytest.warns(UserWarning, match="holds another run, and this one starts at step 0"):
        state = watch(0.01, 1)
    assert read(tmp_path / "run").lr.unique().tolist() == [0.01]
    assert read_epochs(tmp_path / "run").epoch.tolist() == [0]
    pd.testing.assert_frame_equal(read(tmp_path / "run" / "earlier-1"), first)
    assert read_epochs(tmp_path / "run" / "earlier-1").epoch.tolist() == [0, 1, 2]
    assert [read_run(tmp_path / "run" / part)["recipe"]["lr"] for part in (".", "earlier-1")] == [0.01, 0.1]
    # From a state, even one taken when the monitor was closed, it resumes.
    watch(0.01, 2, state)
    assert read(tmp_path / "run").step.unique().tolist() == list(range(12))
    with pytest.warns(UserWarning, match="earlier-2"):
        watch(0.3, 1)
