"""The callback in real trainings by Lightning's Trainer."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler

pytest.importorskip("lightning")

import lightning.pytorch as pl

from isogon.dynamics import Monitor, read, read_epochs, read_run
from isogon.errors import ArgumentError
from isogon.integrations.lightning import IsogonCallback
from isogon.optim import drive
from isogon.schedules import cosine

BATCH, STEPS = 16, 4  # 64 samples
BASE = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}


class Classifier(pl.LightningModule):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)

    def training_step(self, batch, index):
        loss = nn.functional.cross_entropy(self(batch[0]), batch[1])
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, index):
        self.log("val/loss", nn.functional.cross_entropy(self(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.SGD([p for p in self.parameters() if p.requires_grad], **BASE)


class Endless(IterableDataset):
    """Ready-made batches, over and over; nobody knows how many."""

    def __init__(self, batches) -> None:
        self.batches = batches

    def __iter__(self):
        return itertools.cycle(self.batches)


@pytest.fixture
def trainer(tmp_path):
    def make(*callbacks, max_epochs=2, **options):
        quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
        if not any(isinstance(callback, pl.callbacks.ModelCheckpoint) for callback in callbacks):
            quiet["enable_checkpointing"] = False
        quiet |= {"default_root_dir": tmp_path, "num_sanity_val_steps": 0, "log_every_n_steps": 1}
        return pl.Trainer(callbacks=list(callbacks), max_epochs=max_epochs, **quiet | options)

    return make


def hooks(optimizer) -> int:
    return len(optimizer._optimizer_step_pre_hooks) + len(optimizer._optimizer_step_post_hooks)


def test_a_training_is_recorded_and_left_as_it_was(make_net, data, trainer, tmp_path):
    module, folder = Classifier(make_net()), tmp_path / "run"
    callback = IsogonCallback(every_steps=1, inputs=data.tensors[0], folder=folder)
    seen = []

    class Spy(pl.Callback):
        def on_train_batch_end(self, trainer, *_):
            seen.append(hooks(trainer.optimizers[0]))

    training = trainer(Spy(), callback)
    training.fit(module, DataLoader(data, BATCH), DataLoader(data, BATCH))
    assert set(seen) == {2}
    assert hooks(training.optimizers[0]) == 0
    monitor = callback.monitor
    assert (monitor.batch_size, monitor.samples) == (BATCH, 64)
    records = monitor.records
    assert set(records.layer) == {"net.0.weight", "net.3.weight", "all"}
    assert records.query("layer == 'all'").step.tolist() == list(range(2 * STEPS))
    assert np.isfinite(records.step_angle).all()
    assert (records.step_angle > 0).all()
    assert records.query("epoch_angle.notna()").step.unique().tolist() == [STEPS - 1, 2 * STEPS - 1]
    assert monitor.epochs.epoch.tolist() == [0, 1]
    assert monitor.epochs[["loss", "val/loss"]].gt(0).all(axis=None)
    assert read(folder).equals(records)
    assert len(read_epochs(folder)) == 2
    assert read_run(folder)["recipe"]["lr"] == 0.1


def test_it_measures_what_a_plain_loop_measures(make_net, data, trainer):
    """Lightning gives its optimizers a closure, in which the gradients come to be only after the step has begun."""
    callback = IsogonCallback(every_steps=1, inputs=data.tensors[0])
    trainer(callback).fit(Classifier(make_net()), DataLoader(data, BATCH))
    module = Classifier(make_net())
    optimizer = module.configure_optimizers()
    with Monitor(module, optimizer, batch_size=BATCH, samples=64, inputs=data.tensors[0], every_steps=1) as monitor:
        for _ in range(2):
            for x, y in DataLoader(data, BATCH):
                optimizer.zero_grad()
                nn.functional.cross_entropy(module(x), y).backward()
                optimizer.step()
    pd.testing.assert_frame_equal(callback.monitor.records, monitor.records)


@pytest.mark.parametrize(("log", "layers"), [("all", {"all"}), ("layers", {"net.0.weight", "net.3.weight", "all"})])
def test_the_newest_angles_are_logged(make_net, data, trainer, log, layers):
    callback = IsogonCallback(every_steps=1, inputs=data.tensors[0], log=log)
    training = trainer(callback)
    training.fit(Classifier(make_net()), DataLoader(data, BATCH))
    last = callback.monitor.records.query(f"step == {2 * STEPS - 1}").set_index("layer")
    logged = {name: float(v) for name, v in training.callback_metrics.items() if name.startswith("isogon/")}
    wanted = {
        f"isogon/{layer}/{angle}": pytest.approx(last.loc[layer, angle], rel=1e-6)
        for layer in layers
        for angle in ("step_angle", "epoch_angle")
    }
    assert logged == wanted
    assert not [name for name in callback.monitor.epochs.columns if name.startswith("isogon/")]


def test_findings_are_in_lightnings_log_and_passed_on(make_net, data, trainer, caplog):
    """A drop of the learning rate long before equilibrium."""

    class Dropped(Classifier):
        def configure_optimizers(self):
            optimizer = super().configure_optimizers()
            return [optimizer], [torch.optim.lr_scheduler.MultiStepLR(optimizer, [3], 0.1)]

    calls = []
    inputs = torch.randn(16, 8)
    callback = IsogonCallback(every_steps=1, inputs=inputs, on_finding=calls.append)
    with caplog.at_level("INFO"):
        trainer(callback, max_epochs=5).fit(Dropped(make_net()), DataLoader(data, BATCH))
    assert [finding.name for finding in calls] == ["early_decay"]
    lines = [record.getMessage() for record in caplog.records if record.name == "lightning.pytorch.isogon"]
    assert lines == [f"isogon, warning: {calls[0].advice}"]


def test_nothing_is_logged_where_nothing_is_asked_for(make_net, data, trainer):
    training = trainer(IsogonCallback(log="none"))
    training.fit(Classifier(make_net()), DataLoader(data, BATCH))
    assert set(training.callback_metrics) == {"loss"}
    with pytest.raises(ArgumentError, match="log must be one of all, layers, none"):
        IsogonCallback(log="some")


@pytest.mark.parametrize(
    ("loader", "options", "batch_size", "samples"),
    [
        ({"batch_size": 16}, {}, 16, 64),
        ({"batch_size": 24}, {}, 24, 64),
        ({"batch_size": 24, "drop_last": True}, {}, 24, 48),
        ({"batch_size": 16}, {"accumulate_grad_batches": 2}, 32, 64),
        ({"batch_size": 8}, {"limit_train_batches": 4, "accumulate_grad_batches": 2}, 16, 32),
        ({"batch_sampler": BatchSampler(SequentialSampler(range(40)), 20, False)}, {}, 20, 40),
    ],
)
def test_batch_and_epoch_are_the_trainers(make_net, data, trainer, loader, options, batch_size, samples):
    callback = IsogonCallback(every_steps=1)
    training = trainer(callback, **options)
    training.fit(Classifier(make_net()), DataLoader(data, **loader))
    assert (callback.monitor.batch_size, callback.monitor.samples) == (batch_size, samples)
    assert callback.monitor.records.step.max() + 1 == training.global_step
    assert callback.monitor.epochs.epoch.tolist() == [0, 1]


def test_data_of_unknown_size_asks_for_it(make_net, data, trainer):
    pairs = list(DataLoader(data, BATCH))
    for options, missing in (({}, "batch_size"), ({"batch_size": BATCH}, "samples")):
        loader = pairs if missing == "batch_size" else DataLoader(Endless(pairs), batch_size=None)
        with pytest.raises(ArgumentError, match=f"{missing} must be given"):
            trainer(IsogonCallback(**options), max_steps=2).fit(Classifier(make_net()), loader)
    with pytest.raises(ArgumentError, match="batch_size must be a whole number"):
        trainer(IsogonCallback(batch_size=0)).fit(Classifier(make_net()), DataLoader(data, BATCH))
    callback = IsogonCallback(batch_size=BATCH, samples=64, every_steps=1)
    trainer(callback, max_steps=3).fit(Classifier(make_net()), DataLoader(Endless(pairs), batch_size=None))
    assert callback.monitor.records.step.max() == 2


def test_an_epoch_cut_short_does_not_count(make_net, data, trainer):
    callback = IsogonCallback(every_steps=1)
    trainer(callback, max_steps=STEPS + 1).fit(Classifier(make_net()), DataLoader(data, BATCH))
    assert callback.monitor.records.step.max() == STEPS
    assert callback.monitor.epochs.epoch.tolist() == [0]


def test_a_training_that_dies_leaves_no_hooks_and_keeps_its_rows(make_net, data, trainer, tmp_path):
    class Dying(Classifier):
        def training_step(self, batch, index):
            if index == 2:
                raise ZeroDivisionError
            return super().training_step(batch, index)

    training = trainer(IsogonCallback(every_steps=1, folder=tmp_path / "run"))
    with pytest.raises(ZeroDivisionError):
        training.fit(Dying(make_net()), DataLoader(data, BATCH))
    assert hooks(training.optimizers[0]) == 0
    assert read(tmp_path / "run").step.unique().tolist() == [0, 1]


@pytest.mark.parametrize("saved", ["at the epoch's end", "by the last validation", "when it was over"])
def test_a_resumed_training_goes_on_counting(make_net, data, trainer, tmp_path, saved):
    loaders = DataLoader(data, BATCH), DataLoader(data, BATCH)
    file, keep, whole = tmp_path / "saved.ckpt", [], IsogonCallback(every_steps=1)
    if saved == "when it was over":
        first = trainer(IsogonCallback(every_steps=1), max_epochs=1)
        first.fit(Classifier(make_net()), *loaders)
        first.save_checkpoint(file)
    else:
        keep = [
            pl.callbacks.ModelCheckpoint(
                tmp_path, "{epoch}", save_top_k=-1, save_on_train_epoch_end=saved == "at the epoch's end"
            )
        ]
        file = tmp_path / "epoch=0.ckpt"
    trainer(whole, *keep).fit(Classifier(make_net()), *loaders)
    resumed = IsogonCallback(every_steps=1)
    trainer(resumed).fit(Classifier(make_net()), *loaders, ckpt_path=file)
    second, again = (c.monitor.records.query(f"step >= {STEPS}").reset_index(drop=True) for c in (whole, resumed))
    assert len(second)
    for column in ("step", "epoch", "layer", "step_angle", "epoch_angle", "unit_grad_sq"):
        assert again[column].equals(second[column]), column
    assert resumed.monitor.epochs.epoch.tolist() == [0, 1]


def test_a_checkpoint_from_the_middle_of_an_epoch(make_net, data, trainer, tmp_path):
    """The epoch angle of the resumed epoch starts where the epoch did."""
    keep = pl.callbacks.ModelCheckpoint(tmp_path, "{step}", save_top_k=-1, every_n_train_steps=STEPS // 2)
    start = make_net()[0].weight
    trainer(IsogonCallback(every_steps=1), keep, max_epochs=1).fit(Classifier(make_net()), DataLoader(data, BATCH))
    callback, module = IsogonCallback(every_steps=1), Classifier(make_net())
    trainer(callback, max_epochs=1).fit(module, DataLoader(data, BATCH), ckpt_path=tmp_path / f"step={STEPS // 2}.ckpt")
    row = callback.monitor.records.query("layer == 'net.0.weight'").iloc[-1]
    cosine = nn.functional.cosine_similarity(start.flatten(), module.net[0].weight.flatten(), dim=0)
    assert row.step == STEPS - 1
    assert row.epoch_angle == pytest.approx(float(cosine.detach().acos()), rel=1e-3)


def test_a_new_training_with_an_old_callback_starts_anew(make_net, data, trainer):
    callback = IsogonCallback(every_steps=1)
    for _ in range(2):
        trainer(callback, max_epochs=1).fit(Classifier(make_net()), DataLoader(data, BATCH))
        assert callback.monitor.records.step.unique().tolist() == list(range(STEPS))
        assert callback.monitor.epochs.epoch.tolist() == [0]


class Driven(Classifier):
    """Trains by a schedule of isogon's, which Lightning steps."""

    schedule = cosine(0.2, 0.01, 2 * STEPS)

    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        self.driver = drive(optimizer, self.schedule)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": self.driver, "interval": "step"}}


@pytest.mark.parametrize("accumulated", [1, 2])
def test_drive_is_a_scheduler_that_advances_with_the_optimizer(make_net, data, trainer, accumulated):
    module, callback = Driven(make_net()), IsogonCallback(every_steps=1)
    loaders = DataLoader(data, BATCH // accumulated), DataLoader(data, BATCH)
    trainer(callback, accumulate_grad_batches=accumulated).fit(module, *loaders)
    assert module.driver.last_epoch == 2 * STEPS
    rows = callback.monitor.records.drop_duplicates("step")
    np.testing.assert_allclose(rows.lr, module.schedule.lr(np.arange(2 * STEPS)))


def test_drive_comes_back_from_a_checkpoint(make_net, data, trainer, tmp_path):
    first = trainer(max_epochs=1)
    first.fit(Driven(make_net()), DataLoader(data, BATCH))
    first.save_checkpoint(tmp_path / "saved.ckpt")
    callback = IsogonCallback(every_steps=1)
    trainer(callback).fit(Driven(make_net()), DataLoader(data, BATCH), ckpt_path=tmp_path / "saved.ckpt")
    rows = callback.monitor.records.drop_duplicates("step")
    np.testing.assert_allclose(rows.lr, Driven.schedule.lr(np.arange(STEPS, 2 * STEPS)))


def test_two_optimizers_stepped_by_hand(make_net, data, trainer):
    class ByHand(Classifier):
        automatic_optimization = False

        def configure_optimizers(self):
            return [torch.optim.SGD([self.net[place].weight], **BASE) for place in (0, 3)]

        def training_step(self, batch, index):
            for optimizer in self.optimizers():
                optimizer.zero_grad()
                self.manual_backward(nn.functional.cross_entropy(self(batch[0]), batch[1]))
                optimizer.step()

    callback = IsogonCallback(every_steps=1, inputs=data.tensors[0])
    trainer(callback).fit(ByHand(make_net()), DataLoader(data, BATCH))
    records = callback.monitor.records
    for layer in ("net.0.weight", "net.3.weight", "all"):
        rows = records[records.layer == layer]
        assert rows.step.tolist() == list(range(2 * STEPS))
        assert rows.step_angle.gt(0).all()
    assert callback.monitor.epochs.epoch.tolist() == [0, 1]
