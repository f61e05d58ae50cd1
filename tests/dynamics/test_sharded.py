"""Weights that two processes hold in parts: the record is that of one process with the whole weights."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from isogon.dynamics import read, read_epochs, read_run

SCRIPT = '''
import sys
import warnings

import torch
import torch.nn.functional as F
from torch import distributed as dist
from torch import nn

from isogon import check, symmetries
from isogon.dynamics import Monitor, RunFolder
from isogon.errors import ArgumentError


class Block(nn.Module):
    """Widths that two processes cannot share evenly."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(9, 9, bias=False) for _ in range(4))
        self.norm, self.up, self.down = nn.RMSNorm(9), nn.Linear(9, 15, bias=False), nn.Linear(15, 9, bias=False)

    def forward(self, x):
        y = self.norm(x)
        q, k = F.rms_norm(self.q(y), (9,)), F.rms_norm(self.k(y), (9,))
        x = x + self.o(torch.softmax(q @ k.mT, -1) @ self.v(y))
        return x + self.down(F.relu(self.up(F.rms_norm(x, (9,)))))


class Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.h = nn.Embedding(21, 9), nn.ModuleList(Block() for _ in range(2))
        self.norm, self.head = nn.RMSNorm(9), nn.Linear(9, 21, bias=False)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.h:
            x = block(x)
        return self.head(self.norm(x))


def shard(model):
    from torch.distributed.fsdp import fully_shard

    for block in model.h:
        fully_shard(block)
    return fully_shard(model)


def build(kind, processes):
    torch.manual_seed(0)
    model = Language().double()
    ids = torch.randint(0, 21, (2, 6))
    maps = {"scale_map": check(model, ids), "symmetries": symmetries(model, ids)}
    if processes > 1:
        shard(model)
    if kind == "sgd":
        return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01), maps
    return model, torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1), maps


def train(model, optimizer, rank, processes, steps):
    for step in steps:
        batch = torch.randint(0, 21, (8, 7), generator=torch.Generator().manual_seed(step))[rank::processes]
        optimizer.zero_grad()
        F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten()).backward()
        optimizer.step()


def work(rank, processes, folder):
    if processes > 1:
        dist.init_process_group("gloo", rank=rank, world_size=processes)
    about = {"batch_size": 8, "samples": 36, "every_steps": 1}
    for kind in ("sgd", "adamw"):
        model, optimizer, maps = build(kind, processes)
        with Monitor(model, optimizer, **about, **maps, sinks=[RunFolder(f"{folder}/{kind}")]) as monitor:
            train(model, optimizer, rank, processes, range(10))
            monitor.end_epoch(loss=1.5)
            state = monitor.state_dict()
        assert (monitor.active, monitor.writes) == (True, rank == 0)
        assert len(monitor.records) == (0 if rank else 10 * 16), len(monitor.records)
    # Resumed in the middle of an epoch, from what rank 0 saved.
    everybody = [state]
    if processes > 1:
        dist.broadcast_object_list(everybody)
    with Monitor(model, optimizer, **about, **maps, sinks=[RunFolder(f"{folder}/adamw")]) as monitor:
        monitor.load_state_dict(everybody[0])
        train(model, optimizer, rank, processes, range(10, 14))
    # Asked of the sharded model, theory is silent, and training goes on.
    model, optimizer, _ = build("adamw", processes)
    with warnings.catch_warnings(), Monitor(model, optimizer, **about, inputs=torch.zeros(2, 6, dtype=int)) as monitor:
        train(model, optimizer, rank, processes, range(2))
    assert ("before fully_shard" in str(monitor.silence)) == (processes > 1), monitor.silence
    if processes > 1:
        from torch.distributed.fsdp import FullyShardedDataParallel

        flat = FullyShardedDataParallel(Language(), device_id=torch.device("cpu"))
        try:
            Monitor(flat, torch.optim.AdamW(flat.parameters()), **about)
        except ArgumentError as error:
            assert "fully_shard" in str(error), error
        else:
            raise AssertionError("flat shards were taken")
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    work(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
'''


def run(script: Path, processes: int, folder: Path) -> None:
    port = str(20000 + np.random.default_rng().integers(20000))
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    arguments = [sys.executable, str(script)]
    ranks = [
        subprocess.Popen(
            [*arguments, str(rank), str(processes), str(folder)], env=environment, stderr=subprocess.PIPE, text=True
        )
        for rank in range(processes)
    ]
    try:
        errors = [rank.communicate(timeout=180)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0] * processes, "\n".join(errors)


@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="needs gloo")
def test_the_records_of_two_processes_are_those_of_one(tmp_path):
    """Momentum buffers, uneven parts, groups, epochs ended by N/B and by hand, and a run that resumes."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    for processes in (1, 2):
        run(script, processes, tmp_path / str(processes))
    for kind in ("sgd", "adamw"):
        one, two = (read(tmp_path / processes / kind) for processes in "12")
        assert one.layer.tolist() == two.layer.tolist()
        assert {"embed.weight", "group:residual", "all"} <= set(one.layer)
        assert one.query("layer == 'group:residual'").predicted_step_angle.notna().all()
        # After a resumption in the middle of an epoch sharded weights know its angle from there on.
        before = (one.step < 10).to_numpy()
        for column in one.select_dtypes("float64"):
            rows = before if "epoch_angle" in column else np.ones(len(one), dtype=bool)
            # A leak is rounding noise of these float64 sums: about 1e-16 of what cancels in it.
            bound = {"rtol": 0, "atol": 1e-12} if column == "radial" else {"rtol": 1e-6}
            np.testing.assert_allclose(one[column][rows], two[column][rows], err_msg=column, **bound)
        assert read_run(tmp_path / "1" / kind) == read_run(tmp_path / "2" / kind)
        assert read_epochs(tmp_path / "1" / kind).equals(read_epochs(tmp_path / "2" / kind))
