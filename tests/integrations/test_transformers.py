"""The callback in real trainings by the Trainer of transformers, of a tiny BERT made from a config."""

from __future__ import annotations

import logging
import os

import numpy as np
import pytest
import torch

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before the library is loaded; nothing here is to be fetched
pytest.importorskip("transformers")
pytest.importorskip("accelerate")  # its Trainer needs it

from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

from isogon.dynamics import read, read_epochs
from isogon.integrations.transformers import IsogonCallback
from isogon.report import summarise, write_page

BATCH, ACCUMULATED, STEPS = 4, 2, 3  # 24 samples


class Sentences(Dataset):
    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.tokens = torch.randint(0, 20, (24, 5), generator=generator)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index):
        return {"input_ids": self.tokens[index], "labels": self.tokens[index, 0] % 2}


@pytest.fixture
def trainer(tmp_path):
    def make(callback, **options):
        torch.manual_seed(0)
        config = BertConfig(
            vocab_size=20,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=8,
        )
        arguments = {
            "output_dir": str(tmp_path / "out"),
            "per_device_train_batch_size": BATCH,
            "gradient_accumulation_steps": ACCUMULATED,
            "num_train_epochs": 2,
            "save_strategy": "no",
            "logging_strategy": "epoch",
            "weight_decay": 0.1,
            "learning_rate": 1e-3,
            "disable_tqdm": True,
            "report_to": [],
            "use_cpu": True,
        }
        return Trainer(
            model=BertForSequenceClassification(config),
            args=TrainingArguments(**arguments | options),
            train_dataset=Sentences(),
            callbacks=[callback],
        )

    return make


def hooks(accelerated) -> int:
    inner = accelerated.optimizer
    return len(inner._optimizer_step_pre_hooks) + len(inner._optimizer_step_post_hooks)


class Spy(TrainerCallback):
    def __init__(self) -> None:
        self.hooks = set()

    def on_step_end(self, args, state, control, optimizer=None, **kwargs) -> None:
        self.hooks.add(hooks(optimizer))


def test_a_training_is_recorded_and_left_as_it_was(trainer, tmp_path):
    callback = IsogonCallback(every_steps=1, folder=tmp_path / "run")
    training, spy = trainer(callback), Spy()
    training.add_callback(spy)
    training.train()
    assert spy.hooks == {2}
    assert hooks(training.optimizer) == 0
    monitor = callback.monitor
    assert (monitor.batch_size, monitor.samples) == (BATCH * ACCUMULATED, 24)
    records = monitor.records
    query = records.query("layer == 'bert.encoder.layer.0.attention.self.query.weight'")
    assert query.step.tolist() == list(range(2 * STEPS))
    assert query.weight_decay.eq(0.1).all()
    assert np.isfinite(query.step_angle).all()
    assert query.step_angle.gt(0).all()
    assert records.query("epoch_angle.notna()").step.unique().tolist() == [STEPS - 1, 2 * STEPS - 1]
    assert monitor.epochs.epoch.tolist() == [0, 1]
    assert monitor.epochs.loss.gt(0).all()
    assert set(monitor.epochs.columns) == {"epoch", "step", "loss", "grad_norm", "learning_rate"}, "of epochs alone"
    assert read(tmp_path / "run").equals(records)
    assert read_epochs(tmp_path / "run").loss.tolist() == monitor.epochs.loss.tolist()


def test_findings_are_in_the_log_of_transformers_and_passed_on(trainer, caplog):
    """Weights kept in half precision, at a rate at which rounding swallows most of the steps."""
    calls = []
    callback = IsogonCallback(every_steps=1, on_finding=calls.append)
    training = trainer(callback, learning_rate=1e-6, max_grad_norm=0.0)
    training.model.to(torch.bfloat16)
    logger = logging.getLogger("transformers")  # does not hand its records on
    logger.addHandler(caplog.handler)
    try:
        training.train()
    finally:
        logger.removeHandler(caplog.handler)
    assert [finding.name for finding in calls if finding.severity != "note"] == ["below_resolution"]
    lines = [record.getMessage() for record in caplog.records if record.name == "transformers.isogon"]
    (coarse,) = [finding for finding in calls if finding.name == "below_resolution"]
    assert f"isogon, warning: {coarse.advice}" in lines


def test_a_page_about_a_silent_theory_says_so_first(trainer, tmp_path):
    """The documented line, with nothing said of the model, and what a user then reads."""
    trainer(IsogonCallback(every_steps=1, folder=tmp_path / "run")).train()
    summary = summarise(tmp_path / "run")
    assert summary.findings[0].name == "no_law"
    page = write_page(summary, tmp_path / "page.html").read_text()
    assert "Nothing calls for a change" not in page


@pytest.mark.parametrize("save", ["epoch", "steps"])
def test_a_resumed_training_goes_on_counting(trainer, tmp_path, save):
    """With "steps" the checkpoint is made by the epoch's last step, before the callback hears of the epoch's end."""
    whole = IsogonCallback(every_steps=1)
    trainer(whole, save_strategy=save, save_steps=STEPS, num_train_epochs=3).train()
    resumed = IsogonCallback(every_steps=1)
    folder = tmp_path / "out" / f"checkpoint-{2 * STEPS}"
    trainer(resumed, num_train_epochs=3).train(resume_from_checkpoint=str(folder))
    second = whole.monitor.records.query(f"step >= {2 * STEPS}").reset_index(drop=True)
    again = resumed.monitor.records.query(f"step >= {2 * STEPS}").reset_index(drop=True)
    assert len(second)
    for column in ("step", "epoch", "layer", "step_angle", "epoch_angle"):
        assert again[column].equals(second[column])
    assert resumed.monitor.epochs.epoch.tolist() == [0, 1, 2]


def test_resuming_without_a_state_is_said(trainer, tmp_path):
    trainer(IsogonCallback(), save_strategy="epoch").train()
    folder = tmp_path / "out" / f"checkpoint-{STEPS}"
    (folder / "isogon.pt").unlink()
    callback = IsogonCallback(every_steps=1)
    with pytest.warns(UserWarning, match=r"isogon\.pt does not exist"):
        trainer(callback).train(resume_from_checkpoint=str(folder))
    assert callback.monitor.records.step.max() == STEPS - 1


def test_an_epoch_cut_short_does_not_count(trainer):
    callback = IsogonCallback(every_steps=1)
    trainer(callback, max_steps=STEPS + 1).train()
    assert callback.monitor.records.step.max() == STEPS
    assert callback.monitor.epochs.epoch.tolist() == [0]


def test_epochs_are_the_trainers(trainer):
    """Two steps of ten samples out of 24 make an epoch here, not 2.4 steps."""
    callback = IsogonCallback(every_steps=1)
    options = {"per_device_train_batch_size": 10, "gradient_accumulation_steps": 1, "dataloader_drop_last": True}
    trainer(callback, **options, logging_strategy="no").train()
    assert callback.monitor.records.query("epoch_angle.notna()").step.unique().tolist() == [1, 3]
