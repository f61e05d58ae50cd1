"""Which samples each step uses and how each is augmented: a function of the config's seed and the epoch alone.

Nothing here remembers anything, so a run that is resumed at an epoch's start, or trained on another device, sees the
same batches.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from isogon.lab.run._augment import find_augmentation
from isogon.lab.run._config import Config


@dataclass(frozen=True)
class Epoch:
    """The samples of an epoch in the order of use, and the random numbers of each."""

    samples: Tensor
    drawn: Tensor
    batch_size: int

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """For each step the places of its samples in the training set, and their random numbers."""
        return zip(torch.split(self.samples, self.batch_size), torch.split(self.drawn, self.batch_size), strict=True)


def epoch_of(config: Config, epoch: int, *, device: torch.device | str = "cpu") -> Epoch:
    """The order of `epoch`, from 0, on `device`."""
    samples, batch = config.recipe.samples, config.recipe.batch_size
    used = min(config.steps_per_epoch * batch, samples)
    if config.replacement:
        order = torch.randint(samples, (used,), generator=generator(config.seed, "order", epoch))
    else:
        # A full batch keeps one order: another each epoch would make other ghost batches, and so another loss.
        number = 0 if batch >= samples else epoch
        order = torch.randperm(samples, generator=generator(config.seed, "order", number))[:used]
    augmentation = find_augmentation(config.augmentation)
    drawn = augmentation.draw(used, generator(config.seed, "augmentation", epoch))
    return Epoch(order.to(device), drawn.to(device), batch)


def generator(seed: int, purpose: str, number: int = 0) -> torch.Generator:
    """A generator for one purpose; streams of different seeds, purposes and numbers have nothing in common."""
    digest = hashlib.sha256(f"isogon/{seed}/{purpose}/{number}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
