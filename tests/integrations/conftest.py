"""A small scale-invariant network and data to train it on."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset


@pytest.fixture(autouse=True)
def _use_one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def make_net() -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        """Two weights that are invariant each by itself; the classifier is fixed."""
        torch.manual_seed(0)
        last = nn.Linear(16, 4)
        last.requires_grad_(False)
        norms = [nn.BatchNorm1d(16, affine=False) for _ in range(2)]
        return nn.Sequential(
            nn.Linear(8, 16, bias=False), norms[0], nn.ReLU(), nn.Linear(16, 16, bias=False), norms[1], last
        )

    return make


@pytest.fixture
def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(torch.randn(64, 8, generator=generator), torch.randint(0, 4, (64,), generator=generator))
