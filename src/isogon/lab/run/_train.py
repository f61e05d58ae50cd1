"""`train`: one run, from its config to its result, on any device and in one process or under `torchrun`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import torch

from isogon.errors import ArgumentError, check_whole
from isogon.files import read_json
from isogon.lab._progress import bar_of_epochs
from isogon.lab.run._checkpoints import load_checkpoint
from isogon.lab.run._config import Config
from isogon.lab.run._distributed import current_ranks
from isogon.lab.run._run import CHECKPOINT, CONFIG, Run
from isogon.lab.run._training import Training

#: called after each epoch with its row
Report = Callable[[Mapping[str, Any]], None]


def train(
    config: Config,
    out: str | os.PathLike[str] | None = None,
    *,
    device: torch.device | str | None = None,
    checkpoint_every: int = 1,
    progress: bool = True,
    report: Report | None = None,
) -> Run:
    """Train `config` to its end.

    Args:
        out: the run's folder: records, a checkpoint every `checkpoint_every` epochs, weights, result. The same call
            resumes a run that was stopped or killed there, and only reads one that has ended. Without it nothing is
            written.
        device: `cuda` where there is one, else `cpu`.
        progress: show a bar on a terminal.
        report: called after each epoch with its row of the table.

    Under `torchrun`, with `torch.distributed` initialised, every process calls this; each trains its part of every
    batch and the first one writes. On a CPU a resumed run ends with the same weights and records to the bit (with the
    same number of threads); on a GPU as far as cuDNN's choice of algorithms repeats.

    >>> from isogon import Recipe
    >>> recipe = Recipe(lr=0.1, weight_decay=5e-3, batch_size=50, samples=200, epochs=2)
    >>> run = train(Config(recipe=recipe, net="cnn4", net_options={"width": 4}, data="fashion-mini"), progress=False)
    >>> run.status, len(run.epochs)
    ('finished', 2)
    """
    check_whole("checkpoint_every", checkpoint_every, cure="count the epochs between checkpoints")
    ranks = current_ranks()
    folder = run_folder(out, config)
    ended = Run.read_if_ended(folder)
    if ended is not None:
        return ended
    device = torch.device(device or default_device())
    forked = [device.index or 0] if device.type == "cuda" else []
    # Networks with dropout seed torch's generator each epoch; the caller's is put back.
    with torch.random.fork_rng(devices=forked):
        training = Training(config, folder, device=device, ranks=ranks, checkpoint_every=checkpoint_every)
        with closing(training), bar_of_epochs(config, training.epoch, shown=progress and ranks.leads) as bar:
            while not training.ended:
                training.begin_epoch()
                for x, y in training.batches():
                    training.backward(x, y)
                    training.step()
                training.end_epoch()
                bar(training.history[-1])
                if report is not None:
                    report(training.history[-1])
            return training.finish()


def default_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def run_folder(out: str | os.PathLike[str] | None, config: Config) -> Path | None:
    """The folder `out`, made where it is not there, unless it holds another run."""
    if out is None:
        return None
    folder = Path(out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArgumentError("out", "a folder we can make", str(folder), error.strerror or "choose another") from None
    if _other_config(folder, config):
        raise ArgumentError("out", "empty or the folder of the same config", str(folder), "choose another")
    return folder


def _other_config(folder: Path, config: Config) -> bool:
    """Whether the folder belongs to another config; a damaged file does not count, and is written again.

    A digit may have changed in it: then the checkpoint still knows whose folder it is.
    """
    if not (folder / CONFIG).exists():
        return False
    with suppress(ArgumentError):
        if Config.from_dict(read_json(folder / CONFIG, CONFIG)).key == config.key:
            return False
        with suppress(ArgumentError):
            return load_checkpoint(folder / CHECKPOINT).get("key") != config.key
        return True
    return False
