"""Both trainers on two processes: the record is that of one process with the whole batch, and one process writes it.

Layer norm looks at one sample at a time, so that two halves of a batch, their gradients averaged, are the batch.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pandas as pd
import pytest

from isogon.dynamics import read, read_epochs, read_run

LIGHTNING = """
import os, sys
import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from isogon.integrations.lightning import IsogonCallback

class Classifier(pl.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        norms = [nn.LayerNorm(16, elementwise_affine=False) for _ in range(2)]
        self.net = nn.Sequential(
            nn.Linear(8, 16, bias=False), norms[0], nn.ReLU(), nn.Linear(16, 16, bias=False), norms[1])

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, index):
        loss = nn.functional.cross_entropy(self(batch[0]), batch[1])
        self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)

def main(folder, processes, batch):
    generator = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(64, 8, generator=generator), torch.randint(0, 16, (64,), generator=generator))
    # What Lightning puts into the loader of each of several processes.
    sampler = DistributedSampler(data, 1, 0) if processes == 1 else None
    watch = IsogonCallback(every_steps=1, folder=folder)
    trainer = pl.Trainer(
        max_epochs=2, callbacks=[watch], accelerator="cpu", devices=processes, logger=False, default_root_dir=folder,
        strategy="ddp" if processes > 1 else "auto", enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=False)
    trainer.fit(Classifier(), DataLoader(data, batch, sampler=sampler))
    trainer.save_checkpoint(os.path.join(folder, "last.ckpt"))
    return trainer.global_rank, watch.monitor
"""

TRANSFORMERS = """
import os, sys
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
from isogon.integrations.transformers import IsogonCallback

def main(folder, processes, batch):
    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig(
        vocab_size=20, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=8, initializer_range=0.3, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
    tokens = torch.randint(0, 20, (64, 5), generator=torch.Generator().manual_seed(1))
    watch = IsogonCallback(every_steps=1, folder=folder)
    arguments = TrainingArguments(
        output_dir=os.path.join(folder, "out"), per_device_train_batch_size=batch, num_train_epochs=2,
        logging_strategy="epoch", optim="sgd", weight_decay=0.1, learning_rate=0.1, max_grad_norm=0.0,
        disable_tqdm=True, report_to=[], use_cpu=True, ddp_backend="gloo" if processes > 1 else None,
        save_strategy="epoch", average_tokens_across_devices=False)  # else a model that counts none has twice its loss
    data = [{"input_ids": one, "labels": one[0] % 2} for one in tokens]
    trainer = Trainer(model, arguments, train_dataset=data, callbacks=[watch])
    trainer.train()
    return trainer.args.process_index, watch.monitor
"""

ASK = """
if __name__ == "__main__":
    rank, monitor = main(sys.argv[1], 2, 8)
    assert (monitor.batch_size, monitor.samples) == (16, 64), (monitor.batch_size, monitor.samples)
    assert monitor.active == (rank == 0)
    assert bool(len(monitor.records)) == (rank == 0)
    with open(os.path.join(sys.argv[1], f"rank-{rank}"), "w"):
        pass
"""


@pytest.mark.parametrize(
    ("library", "script", "launcher"),
    [
        # It starts the second process itself.
        pytest.param("lightning", LIGHTNING, [], id="lightning", marks=pytest.mark.slow),
        pytest.param(
            "transformers",
            TRANSFORMERS,
            ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"],
            id="transformers",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_two_processes_make_one_record(library, script, launcher, root, tmp_path, monkeypatch):
    pytest.importorskip(library)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    file, both, alone = tmp_path / "train_on_two.py", tmp_path / "both", tmp_path / "alone"
    file.write_text(script + ASK)
    environment = {**os.environ, "PYTHONPATH": str(root / "src")}
    done = subprocess.run(
        [sys.executable, *launcher, str(file), str(both)], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert {rank.name for rank in both.glob("rank-*")} == {"rank-0", "rank-1"}

    spec = importlib.util.spec_from_file_location("train_on_one", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main(str(alone), 1, 16)
    records, reference = read(both), read(alone)
    assert records.step.unique().tolist() == list(range(8))
    assert not records.duplicated(["step", "layer"]).any()
    assert records.query("epoch_angle.notna()").step.unique().tolist() == [3, 7]
    pd.testing.assert_frame_equal(records.drop(columns="radial"), reference.drop(columns="radial"), rtol=1e-3)
    epochs = read_epochs(both)
    assert epochs.epoch.tolist() == [0, 1]
    assert epochs.loss.to_numpy() == pytest.approx(read_epochs(alone).loss.to_numpy(), rel=1e-3)
    recipe = read_run(both)["recipe"]
    assert (recipe["batch_size"], recipe["samples"]) == (16, 64)
