"""What the sinks leave behind, read back with the libraries' own readers."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
import torch
from torch import nn

from isogon.dynamics import SCHEMA, Monitor
from isogon.errors import ArgumentError

STEPS = 6


@pytest.fixture
def train(make_net, data):
    """Trains six steps, two epochs, with a sink; gives the records."""

    def run(sink, *, steps: int = STEPS) -> pd.DataFrame:
        net = make_net()
        x, y = data.tensors
        optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.1, weight_decay=0.01)
        with Monitor(net, optimizer, batch_size=64, samples=192, inputs=x, every_steps=1, sinks=[sink]) as monitor:
            for _ in range(steps):
                optimizer.zero_grad()
                nn.functional.cross_entropy(net(x), y).backward()
                optimizer.step()
        return monitor.records

    return run


def numbers(records: pd.DataFrame) -> dict[tuple[str, int], float]:
    """Every finite number of the records by the name and step it must be found under."""
    return {
        (f"isogon/{row.layer}/{quantity}", row.step): float(value)
        for row in records.itertuples()
        for quantity in SCHEMA
        if quantity not in ("step", "epoch", "layer")
        if not pd.isna(value := getattr(row, quantity)) and math.isfinite(value)
    }


def in_event_files(folder: Path) -> dict[tuple[str, int], float]:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {(tag, event.step): event.value for tag in events.Tags()["scalars"] for event in events.Scalars(tag)}


@pytest.mark.parametrize("given", ["folder", "writer"])
def test_tensorboard_shows_every_number_at_its_step(train, tmp_path, given):
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    from isogon.integrations.tensorboard import TensorBoardSink

    writer = tensorboard.SummaryWriter(str(tmp_path)) if given == "writer" else None
    records = train(TensorBoardSink(writer or tmp_path))
    shown, expected = in_event_files(tmp_path), numbers(records)
    assert len(expected) > 100
    assert shown.keys() == expected.keys()
    assert ("isogon/all/step_angle", STEPS - 1) in shown
    for place, value in expected.items():
        assert shown[place] == pytest.approx(value, rel=1e-6, abs=1e-30), place
    if writer is not None:
        writer.add_scalar("mine", 1.0, 0)  # still the user's
        writer.close()
        assert ("mine", 0) in in_event_files(tmp_path)


def test_tensorboard_has_no_file_before_the_monitor_opens(train, tmp_path):
    """Ranks that do not measure leave nothing behind."""
    pytest.importorskip("torch.utils.tensorboard")
    from isogon.integrations.tensorboard import TensorBoardSink

    sink = TensorBoardSink(tmp_path / "events")
    assert not (tmp_path / "events").exists()
    train(sink, steps=1)
    assert list((tmp_path / "events").iterdir())


def test_tensorboard_takes_a_writer_or_a_folder():
    pytest.importorskip("torch.utils.tensorboard")
    from isogon.integrations.tensorboard import TensorBoardSink

    with pytest.raises(ArgumentError, match="SummaryWriter or a folder"):
        TensorBoardSink(3)


@pytest.fixture
def offline(tmp_path, monkeypatch):
    """wandb, without a network and with everything it writes in a temporary folder."""
    wandb = pytest.importorskip("wandb")
    for name, value in {"MODE": "offline", "DIR": tmp_path, "SILENT": "true", "CACHE_DIR": tmp_path}.items():
        monkeypatch.setenv(f"WANDB_{name}", str(value))
    try:
        wandb.teardown()
        wandb.init().finish()
    except Exception as error:  # whatever keeps its service from starting here
        pytest.skip(f"wandb does not start offline: {error}")
    yield wandb
    wandb.teardown()  # it remembers the environment


def log_records(data: bytes) -> Iterator[bytes]:
    """The records of a W&B log: after a header of 7 bytes LevelDB's format, in blocks of 32 KiB."""
    place, whole = 7, b""
    while place + 7 <= len(data):
        if (left := 32768 - place % 32768) < 7:
            place += left
            continue
        length, kind = struct.unpack("<HB", data[place + 4 : place + 7])
        whole += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # a record in one piece, or its last piece
            yield whole
            whole = b""


def in_wandb_files(folder: Path) -> dict[tuple[str, int], float]:
    """What was logged, by name and our own step, in every run under `folder`."""
    from wandb.proto import wandb_internal_pb2

    numbers = {}
    for data in (file.read_bytes() for file in folder.rglob("*.wandb")):
        for content in log_records(data):
            record = wandb_internal_pb2.Record.FromString(content)
            row = {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
            if (step := row.pop("isogon/step", None)) is not None:
                numbers |= {
                    (name, int(step)): float(value) for name, value in row.items() if name.startswith("isogon/")
                }
    return numbers


@pytest.mark.parametrize("given", ["run", "active", "nothing"])
def test_wandb_logs_every_number_against_our_step(train, tmp_path, offline, given):
    from isogon.integrations.wandb import WandbSink

    run = None if given == "nothing" else offline.init()
    if run is not None:
        run.log({"mine": 1.0}, step=1000)  # a step of the user's, far ahead of ours
    records = train(WandbSink(run if given == "run" else None))
    if run is None:
        assert offline.run is None  # finished with the monitor
    else:
        assert offline.run is run
        run.finish()
    offline.teardown()  # its service may still be writing
    shown, expected = in_wandb_files(tmp_path), numbers(records)
    assert shown.keys() == expected.keys()
    for place, value in expected.items():
        assert shown[place] == pytest.approx(value), place


@pytest.fixture
def mlflow(tmp_path):
    """mlflow with a database in a temporary folder."""
    module = pytest.importorskip("mlflow")
    before = module.get_tracking_uri()
    module.set_tracking_uri(f"sqlite:///{tmp_path / 'runs.db'}")
    yield module
    if module.active_run() is not None:
        module.end_run()
    module.set_tracking_uri(before)


@pytest.mark.parametrize("given", ["run", "id", "active", "nothing"])
def test_mlflow_has_every_number_at_its_step(train, mlflow, given):
    from isogon.integrations.mlflow import MlflowSink

    run = None if given == "nothing" else mlflow.start_run()
    records = train(MlflowSink({"run": run, "id": run and run.info.run_id}.get(given)))
    if run is None:
        assert mlflow.active_run() is None  # ended with the monitor
    else:
        assert mlflow.active_run().info.run_id == run.info.run_id
    (found,) = mlflow.MlflowClient().search_runs(["0"])
    assert found.info.status == ("FINISHED" if run is None else "RUNNING")
    expected = numbers(records)
    names = {name for name, _ in expected}
    assert set(found.data.metrics) == names
    client = mlflow.MlflowClient()
    shown = {
        (name, metric.step): metric.value
        for name in names
        for metric in client.get_metric_history(found.info.run_id, name)
    }
    assert shown.keys() == expected.keys()
    for place, value in expected.items():
        assert shown[place] == pytest.approx(value), place


def test_mlflow_gets_names_that_it_takes_and_more_numbers_than_one_call_holds(mlflow):
    from isogon.integrations.mlflow import MlflowSink

    count = 1100
    rows = pd.DataFrame({name: [math.nan] * count for name in SCHEMA}).assign(
        step=range(count), layer="qkv[0] (ü)", norm=[float(i) for i in range(count)]
    )
    sink = MlflowSink()
    sink.open({})
    sink(rows)
    sink.close()
    (run,) = mlflow.MlflowClient().search_runs(["0"])
    history = mlflow.MlflowClient().get_metric_history(run.info.run_id, "isogon/qkv_0_ ___/norm")
    assert [metric.value for metric in sorted(history, key=lambda metric: metric.step)] == rows.norm.tolist()
