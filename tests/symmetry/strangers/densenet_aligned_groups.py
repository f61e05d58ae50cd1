"""A DenseNet with group norm whose groups never straddle two of the concatenated tensors."""

from __future__ import annotations

import torch
from torch import Tensor, nn

JOINT_INVARIANT = True
INVARIANT_ALONE = {"stem.weight", "layers.0.conv.weight", "layers.1.conv.weight", "layers.2.conv.weight"}
WHY = (
    "The concatenated channels have degrees 1 and 2, but stem and growth are whole groups, so every "
    "group is of one degree and the norm removes it, for all weights together as for each convolution "
    "alone."
)

GROWTH = 4


class DenseLayer(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(channels // GROWTH, channels)
        self.conv = nn.Conv2d(channels, GROWTH, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.conv(torch.relu(self.norm(x)))], 1)


class DenseNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, GROWTH, 3, padding=1, bias=False)
        self.layers = nn.Sequential(*(DenseLayer(GROWTH * (i + 1)) for i in range(3)))
        self.norm = nn.GroupNorm(4, 4 * GROWTH, affine=False)
        self.head = nn.Linear(4 * GROWTH, 6).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.layers(self.stem(x))))
        logits: Tensor = self.head(x.flatten(2).mean(2))
        return logits


def build() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return DenseNet(), (torch.randn(2, 3, 8, 8),)
