"""The convolution–pool–norm order of old tutorials, with PReLU and maxout."""

from __future__ import annotations

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

JOINT_INVARIANT = False
INVARIANT_ALONE = {"conv1.weight", "conv1.bias", "conv2.weight"}
WHY = (
    "conv1's bias passes max pooling as a constant, which batch norm removes; PReLU keeps the scale "
    "of conv2; maxout compares channels of different biases, so conv3 and its bias are not free."
)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 3)
        self.bn1 = nn.BatchNorm2d(6)
        self.prelu = nn.PReLU(6)
        self.conv2 = nn.Conv2d(6, 6, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(6)
        self.conv3 = nn.Conv2d(6, 8, 1)
        self.bn3 = nn.BatchNorm2d(4, affine=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.bn1(F.max_pool2d(self.conv1(x), 2))
        x = torch.abs(x)
        x = self.bn2(self.prelu(self.conv2(x)))
        x = F.avg_pool2d(self.conv3(x), 2)
        b, c, h, w = x.size()
        x = x.view(b, c // 2, 2, h, w).max(dim=2)[0]
        x = self.bn3(x)
        return x.sum(dim=(2, 3))


def build() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Net(), (torch.randn(4, 1, 14, 14),)
