"""A small scale-invariant network with data, and a loop that trains it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from isogon.nets import cnn4


@dataclass
class Task:
    """A network, its data and a plain training loop, all seeded."""

    model: nn.Module
    inputs: torch.Tensor
    targets: torch.Tensor
    batch: int = 32

    @property
    def parameters(self) -> list[nn.Parameter]:
        return [p for p in self.model.parameters() if p.requires_grad]

    def loss(self, step: int) -> torch.Tensor:
        chosen = torch.randint(0, len(self.inputs), (self.batch,), generator=torch.Generator().manual_seed(step))
        return nn.functional.cross_entropy(self.model(self.inputs[chosen]), self.targets[chosen])

    def train(self, optimizer: torch.optim.Optimizer, steps: int, *, start: int = 0) -> None:
        for step in range(start, start + steps):
            optimizer.zero_grad()
            self.loss(step).backward()
            optimizer.step()


@pytest.fixture
def make_task() -> Callable[..., Task]:
    def make(*, width: int = 4, size: int = 8, samples: int = 256, seed: int = 0, **options: object) -> Task:
        torch.manual_seed(seed)
        model = cnn4(in_channels=1, width=width, **{"scale_invariant": "affine", **options})
        inputs = torch.randn(samples, 1, size, size)
        return Task(model, inputs, torch.randint(0, 10, (samples,)))

    return make
