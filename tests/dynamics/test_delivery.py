"""Rows that a sink did not take: none is lost, the training continues, and what is missing in the end is reported."""

from __future__ import annotations

import resource
import warnings
from contextlib import contextmanager
from functools import partial

import pandas as pd
import pytest
import torch
from torch import nn

from isogon.dynamics import Monitor, ParametersChangedError, RunFolder, read, read_epochs

MADE = {"batch_size": 32, "samples": 128}
BASE = {"lr": 0.05, "momentum": 0.9, "weight_decay": 1e-3}


@contextmanager
def no_room():
    """The system refuses every write of more than a few bytes, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def assert_complete(folder, monitor):
    pd.testing.assert_frame_equal(read(folder), monitor.records)
    assert read_epochs(folder).epoch.tolist() == monitor.epochs.epoch.tolist()


def test_a_full_disk_ends_no_training_and_loses_no_row(make_task, tmp_path):
    task = make_task()
    optimizer = torch.optim.SGD(task.parameters, **BASE)
    other: list[pd.DataFrame] = []
    folder = RunFolder(tmp_path / "run")
    with Monitor(task.model, optimizer, **MADE, every_steps=1, sinks=[folder, other.append]) as monitor:
        task.train(optimizer, 4)
        with (
            no_room(),
            pytest.warns(UserWarning, match=r"RunFolder .*run did not take .*File too large.*: it waits") as caught,
        ):
            task.train(optimizer, 8, start=4)  # two epochs end inside step()
        messages = [str(warning.message) for warning in caught]
        assert sum("did not take" in message for message in messages) == 1, "once, not at every epoch"
        assert sum(map(len, other)) == len(monitor.records), "the other sink had its rows at once"
        task.train(optimizer, 4, start=12)
    assert_complete(tmp_path / "run", monitor)
    pd.testing.assert_frame_equal(pd.concat(other, ignore_index=True), monitor.records)
    assert not list((tmp_path / "run").glob(".*.partial"))


def test_close_tries_once_more_and_says_what_is_missing(make_task, tmp_path):
    task = make_task()
    optimizer = torch.optim.SGD(task.parameters, **BASE)
    monitor = Monitor(task.model, optimizer, **MADE, every_steps=1, sinks=[RunFolder(tmp_path / "run")])
    with no_room():
        with pytest.warns(UserWarning, match="did not take"):
            task.train(optimizer, 4)
        task.train(optimizer, 2, start=4)
        rows = len(monitor.records)
        with pytest.warns(UserWarning, match=rf"run could not be completed .*: {rows} rows and 1 epochs are missing"):
            monitor.close()
    assert len(monitor.records) == rows > 0


def test_a_sink_that_fails_at_close_only_then_completes(make_task, tmp_path):
    task = make_task()
    optimizer = torch.optim.SGD(task.parameters, **BASE)
    monitor = Monitor(task.model, optimizer, **MADE, every_steps=1, sinks=[RunFolder(tmp_path / "run")])
    with no_room(), pytest.warns(UserWarning, match="did not take"):
        task.train(optimizer, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        monitor.close()
    assert_complete(tmp_path / "run", monitor)


def test_epochs_that_were_not_written_are_not_said_to_be_there(make_task, tmp_path):
    """Rows arrive and the table of epochs does not, since a folder stands in its place; closed again, all is there."""
    task = make_task()
    optimizer = torch.optim.SGD(task.parameters, **BASE)
    monitor = Monitor(task.model, optimizer, **MADE, every_steps=1, sinks=[RunFolder(tmp_path / "run")])
    (tmp_path / "run" / "epochs.parquet").mkdir()
    with pytest.warns(UserWarning, match="did not take what was measured"):
        task.train(optimizer, 8)
    with pytest.warns(UserWarning, match="could not be completed .*: 0 rows and 2 epochs are missing there"):
        monitor.close()
    (tmp_path / "run" / "epochs.parquet").rmdir()
    monitor.close()
    assert_complete(tmp_path / "run", monitor)
    assert not list((tmp_path / "run").glob("records.part-*")), "and merged"


def test_a_strict_monitor_raises_and_still_has_the_rows(make_task, tmp_path):
    task = make_task()
    optimizer = torch.optim.SGD(task.parameters, **BASE)
    options = {"flush_epochs": False, "strict_sinks": True, "every_steps": 1}
    monitor = Monitor(task.model, optimizer, **MADE, **options, sinks=[RunFolder(tmp_path / "run")])
    task.train(optimizer, 4)
    with no_room(), pytest.raises(OSError, match="File too large"):
        monitor.flush()
    monitor.close()
    assert_complete(tmp_path / "run", monitor)


def test_a_parameter_that_was_swapped_is_noticed(make_task):
    """Its count is the same; the tensor that is watched would turn no more."""
    task = make_task()
    optimizer = torch.optim.SGD(task.parameters, **BASE)
    with Monitor(task.model, optimizer, **MADE, every_steps=10) as monitor:
        task.train(optimizer, 3)
        group = optimizer.param_groups[0]["params"]
        group[2] = nn.Parameter(group[2].detach().clone())
        with pytest.raises(ParametersChangedError, match="has other parameters than it had when the monitor was made"):
            task.train(optimizer, 1)
    assert monitor.records.step.unique().tolist() == [0]


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_a_compiled_step_is_measured_like_a_plain_one(make_task, kind):
    tables = {}
    for compiled in (False, True):
        task = make_task()
        optimizer = kind(task.parameters, lr=0.01, weight_decay=1e-2)
        step = torch.compile(partial(optimizer.step), backend="eager") if compiled else optimizer.step
        with Monitor(task.model, optimizer, **MADE, inputs=task.inputs[:4], every_steps=1) as monitor:
            for number in range(6):
                optimizer.zero_grad()
                task.loss(number).backward()
                step()
        tables[compiled] = monitor.records
        torch.compiler.reset()
    # A compiler may round otherwise, and AdamW's first steps divide small gradients by themselves: 3e-4 was seen.
    pd.testing.assert_frame_equal(tables[True], tables[False], rtol=5e-3, atol=1e-6)
