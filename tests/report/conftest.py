"""A watched run on disk: a small network, trained for real, whose learning rate drops once."""

from __future__ import annotations

import shutil

import pytest
import torch
from torch import nn

from isogon.dynamics import Monitor, RunFolder, read
from isogon.nets import cnn4

STEPS, DROP = 64, 40
#: what a careless page would run
EVIL = "</script><img src=x onerror=document.title='broken'>"


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory):
    """The folder of a run of 8 epochs with 8 steps each; η ÷ 10 from step 40 on."""
    folder = tmp_path_factory.mktemp("runs") / "first"
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = cnn4(in_channels=1, width=4, scale_invariant="affine")
        inputs, targets = torch.randn(128, 1, 8, 8), torch.randint(0, 10, (128,))
        batches = torch.randint(0, 128, (STEPS, 16))
        trained = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.SGD(trained, lr=0.1, momentum=0.9, weight_decay=5e-3)
        schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [DROP], 0.1)
        sinks = [RunFolder(folder, name="first run")]
        with Monitor(model, optimizer, batch_size=16, samples=128, inputs=inputs[:16], every_steps=1, sinks=sinks):
            for batch in batches:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(inputs[batch]), targets[batch]).backward()
                optimizer.step()
                schedule.step()
    return folder


@pytest.fixture(scope="session")
def records(run_folder):
    return read(run_folder)


@pytest.fixture(scope="session")
def metrics_folder(run_folder, tmp_path_factory):
    """The same run with losses, accuracies and a hostile name in its table of epochs."""
    folder = shutil.copytree(run_folder, tmp_path_factory.mktemp("runs") / "metrics")
    sink = RunFolder(folder)
    for epoch in range(8):
        accuracy = 0.0 if epoch == 0 else float(epoch) / 8
        metrics = {"loss": 2.0 - 0.1 * epoch, "val/loss": 2.1 - 0.1 * epoch, "accuracy": accuracy, EVIL: -float(epoch)}
        sink.end_epoch({"epoch": epoch, "step": 8 * epoch + 7, **metrics, "note": "text", "never": None})
    sink.flush()
    return folder


@pytest.fixture(scope="session")
def evil_folder(run_folder, records, tmp_path_factory):
    """The same run with a layer and a name made to break the page; the layer has stopped, so a finding names it."""
    folder = tmp_path_factory.mktemp("runs") / "evil"
    sink = RunFolder(folder, name=f"run {EVIL} $x_$")
    recipe = {"lr": 0.1, "weight_decay": 5e-3, "batch_size": 16, "samples": 128}
    sink.open({"recipe": recipe, "layers": []})
    renamed = records.replace({"layer": {"stem.conv.weight": EVIL, "body.1.conv.weight": "_hidden $x_$ <b>"}})
    renamed.loc[renamed.layer == EVIL, "step_angle"] = 0.0
    sink(renamed)
    return folder


@pytest.fixture(scope="session")
def evil():
    return EVIL
