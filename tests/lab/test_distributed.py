"""Several processes, one run: `torchrun` gives the weights of one process."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import pandas as pd
import pytest
import torch

from isogon.errors import ArgumentError
from isogon.lab import Run, train
from isogon.lab.run._distributed import Ranks


def by_hand(*command):
    """Two processes with the variables of `torchrun`, less the seconds that it takes itself."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "WORLD_SIZE": "2"}
    shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = [
        subprocess.Popen(
            [sys.executable, *command],
            env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [rank.communicate(timeout=120) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    return "".join(out for out, _ in outputs)


def by_torchrun(*command):
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    ended = subprocess.run(
        [*start, *command], env={**os.environ, "CUDA_VISIBLE_DEVICES": ""}, capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.parametrize("launched", [by_hand, pytest.param(by_torchrun, marks=pytest.mark.slow)])
def test_two_ranks_are_one_process(make_config, tmp_path, launched):
    """They resume where one process was stopped, with half of every batch each, and end with its weights.

    Ghost batches of 10 make up both halves of a batch of 40. Running statistics are the ranks' mean, each of which has
    seen every other ghost batch: they are near those of one process, and so is the accuracy.
    """
    config = make_config(precision="float64", batch_size=40, options={"ghost_batch": 10}, save_predictions=True)
    alone = train(config, tmp_path / "alone", device="cpu")

    def stop(row):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "run", device="cpu", report=stop)
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict()))
    output = launched("-m", "isogon.lab", str(tmp_path / "config.json"), str(tmp_path / "run"))
    together = Run.read(tmp_path / "run")
    assert output == f"finished, test accuracy {together.accuracy:.4f}\n"  # once

    expected, weights_together = (torch.load(run.folder / "weights.pt", weights_only=True) for run in (alone, together))
    assert list(weights_together) == list(expected)
    weights = [name for name in expected if "running" not in name and "tracked" not in name]
    assert len(weights) > 6
    for name in weights:
        torch.testing.assert_close(weights_together[name], expected[name], rtol=0, atol=1e-12)
    pd.testing.assert_frame_equal(together.records, alone.records, rtol=1e-9, atol=1e-9)
    columns = ["epoch", "step", "train_loss", "train_accuracy"]
    pd.testing.assert_frame_equal(together.epochs[columns], alone.epochs[columns], rtol=1e-12)
    assert together.accuracy == pytest.approx(alone.accuracy, abs=0.1)
    assert (together.predictions == alone.predictions).mean() > 0.8


def test_what_ranks_cannot_share_is_refused(make_config):
    two = Ranks(rank=1, size=2)
    two.check(make_config())
    two.check(make_config(samples=190, last_batch="keep", batch_size=60, epochs=1))
    Ranks().check(make_config(batch_size=51, micro_batch=17))
    with pytest.raises(ArgumentError, match="batch_size must be a multiple of the 2 processes") as refusal:
        two.check(make_config(batch_size=51))
    assert "\n" not in str(refusal.value)
    with pytest.raises(ArgumentError, match="a multiple of the 2 processes, the last batch too"):
        two.check(make_config(samples=185, last_batch="keep", batch_size=60))
    with pytest.raises(ArgumentError, match="micro_batch must be left out under torchrun"):
        two.check(make_config(micro_batch=25))


def test_a_rank_takes_consecutive_samples():
    """Ghost batches are then those of one process."""
    batch = torch.arange(40)
    parts = [Ranks(rank, 4).part(batch).tolist() for rank in range(4)]
    assert [place for part in parts for place in part] == batch.tolist()
    assert [len(part) for part in parts] == [10] * 4
    assert Ranks(0, 1).leads
    assert not Ranks(1, 2).leads
