"""A small scale-invariant network with mini-batches, shared by the tests of this room."""

from __future__ import annotations

import pytest
import torch
from torch import nn


class Task:
    """Convolutions, batch norms without affine, a frozen classifier, and images of five noisy patterns."""

    @staticmethod
    def network(dtype=torch.float64, eps=1e-30, seed=0):
        torch.manual_seed(seed)
        model = nn.Sequential(
            nn.Conv2d(3, 6, 3, bias=False),
            nn.BatchNorm2d(6, affine=False, eps=eps),
            nn.ReLU(),
            nn.Conv2d(6, 8, 3, bias=False),
            nn.BatchNorm2d(8, affine=False, eps=eps),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(32, 5).requires_grad_(False),
        )
        return model.to(dtype)

    @staticmethod
    def batches(dtype=torch.float64, count=16, size=24, seed=1, noise=1.0):
        generator = torch.Generator().manual_seed(seed)
        patterns = torch.randn(5, 3, 10, 10, generator=generator)
        labels = torch.randint(0, 5, (count, size), generator=generator)
        images = patterns[labels] + noise * torch.randn(count, size, 3, 10, 10, generator=generator)
        return list(zip(images.to(dtype), labels, strict=True))

    @staticmethod
    def weights(model):
        return [p for p in model.parameters() if p.requires_grad]


@pytest.fixture(scope="session")
def task():
    return Task
