"""The processes that train one run together: each takes its part of every batch (`torchrun`)."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed, nn

from isogon.errors import ArgumentError
from isogon.lab.run._config import Config


@dataclass(frozen=True)
class Ranks:
    """This process's number, and how many there are; 0 of 1 outside `torchrun`."""

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """Whether this process writes files and shows progress."""
        return self.rank == 0

    def part(self, batch: Tensor) -> Tensor:
        """This rank's stretch of a batch: consecutive, so that ghost batches are those of one process."""
        return batch.tensor_split(self.size)[self.rank] if self.size > 1 else batch

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model with gradients averaged over the ranks; running statistics stay apart until `mix_buffers`."""
        if self.size == 1:
            return model
        kind = nn.parallel.DistributedDataParallel
        known = inspect.signature(kind).parameters
        # PyTorch gave the option another name in 2.13.
        apart = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
        options: dict[str, Any] = {apart: False}
        return kind(model, **options)

    @torch.no_grad()
    def mix_buffers(self, model: nn.Module) -> None:
        """Give every rank the mean running statistics."""
        if self.size > 1:
            for buffer in model.buffers():
                if buffer.is_floating_point():
                    distributed.all_reduce(buffer)
                    buffer /= self.size

    def total(self, sums: Tensor) -> Tensor:
        """`sums` added over the ranks."""
        if self.size > 1:
            distributed.all_reduce(sums)
        return sums

    def check(self, config: Config) -> None:
        """Refuse micro batches, and a batch that cannot be shared evenly: the mean of the ranks' gradients would not be
        the batch's."""
        if self.size == 1:
            return
        if config.micro_batch is not None:
            cure = "each process takes a part already"
            raise ArgumentError("micro_batch", "left out under torchrun", config.micro_batch, cure)
        parts = [config.recipe.batch_size]
        rest = config.recipe.samples % config.recipe.batch_size
        if config.last_batch == "keep" and rest:
            parts.append(rest)
        if any(part % self.size for part in parts):
            raise ArgumentError(
                "recipe.batch_size",
                f"a multiple of the {self.size} processes, the last batch too",
                parts,
                "choose another batch size, or last_batch='drop'",
            )


def current_ranks() -> Ranks:
    if distributed.is_available() and distributed.is_initialized():
        return Ranks(distributed.get_rank(), distributed.get_world_size())
    return Ranks()
