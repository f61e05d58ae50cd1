"""A batch-norm network in evaluation mode: its running statistics are constants."""

from __future__ import annotations

import torch
from torch import Tensor, nn

JOINT_INVARIANT = False
INVARIANT_ALONE = {"head.weight"}
WHY = "With stored statistics batch norm is an affine map; only the head's rows, normalised by L2, are free."


class CosineHead(nn.Module):
    def __init__(self, inside: int, classes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(classes, inside))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.cosine_similarity(x.unsqueeze(1), self.weight.unsqueeze(0), dim=-1)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 8, 3, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.head = CosineHead(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.body(x))
        return y


def build() -> tuple[nn.Module, tuple[Tensor, ...]]:
    model = Net()
    with torch.no_grad():
        model(1 + torch.randn(8, 3, 8, 8))  # gives the running statistics values of their own
    return model.eval(), (torch.randn(2, 3, 8, 8),)
