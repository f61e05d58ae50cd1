"""A ResNet with biases before batch norm; a norm without affine and a frozen head at the end."""

from __future__ import annotations

import torch
from torch import Tensor, nn

CONVS = ("stem", "one.a", "one.b", "two.a", "two.b", "two.project")
JOINT_INVARIANT = True
INVARIANT_ALONE = {f"{conv}.{kind}" for conv in CONVS for kind in ("weight", "bias")}
WHY = (
    "Both terms of every residual sum come out of batch norm with affine, at degree 1, biases before "
    "it have no effect, and the last norm has no affine and feeds a frozen classifier."
)


class Residual(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.a = nn.Conv2d(inside, outside, 3, stride, 1)
        self.bn_a = nn.BatchNorm2d(outside)
        self.b = nn.Conv2d(outside, outside, 3, 1, 1)
        self.bn_b = nn.BatchNorm2d(outside)
        self.act = nn.ReLU(inplace=True)
        self.project: nn.Module | None = None
        if stride != 1 or inside != outside:
            self.project = nn.Conv2d(inside, outside, 1, stride)
            self.bn_project = nn.BatchNorm2d(outside)

    def forward(self, x: Tensor) -> Tensor:
        y = self.act(self.bn_a(self.a(x)))
        y = self.bn_b(self.b(y))
        y += x if self.project is None else self.bn_project(self.project(x))
        out: Tensor = self.act(y)
        return out


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.bn = nn.BatchNorm2d(6)
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        self.one = Residual(6, 6, 1)
        self.two = Residual(6, 8, 2)
        self.last_norm = nn.BatchNorm1d(8, affine=False)
        self.fc = nn.Linear(8, 5)
        for p in self.fc.parameters():
            p.requires_grad = False

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(torch.relu_(self.bn(self.stem(x))))
        x = self.two(self.one(x))
        logits: Tensor = self.fc(self.last_norm(x.mean([2, 3])))
        return logits


def build() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return ResNet(), (torch.randn(4, 3, 12, 12),)
