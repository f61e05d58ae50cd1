"""Weight-standardised convolutions, by mean and std or through F.batch_norm; group norm; biases."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

JOINT_INVARIANT = False
INVARIANT_ALONE = {"conv1.weight", "conv2.weight", "conv3.weight"}
WHY = "A standardised kernel does not depend on its scale; the biases, gains and the head around it do."


class StdConv2d(nn.Conv2d):
    eps = 1e-5

    def forward(self, x: Tensor) -> Tensor:
        w = self.weight
        mean = w.mean(dim=[1, 2, 3], keepdim=True)
        std = w.std(dim=[1, 2, 3], keepdim=True)
        w = (w - mean) / (std + self.eps)
        return F.conv2d(x, w, self.bias, self.stride, self.padding, self.dilation, self.groups)


class ScaledStdConv2d(nn.Conv2d):
    """Standardises through batch norm's kernel, the filters taken as channels, with a trainable gain."""

    def __init__(self, inside: int, outside: int, kernel: int, eps: float = 1e-6) -> None:
        super().__init__(inside, outside, kernel, padding="same")
        self.gain = nn.Parameter(torch.full((outside, 1, 1, 1), 0.5))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        flat = self.weight.reshape(1, self.out_channels, -1)
        gain = self.gain.view(-1)
        w = F.batch_norm(flat, None, None, weight=gain, training=True, momentum=0.0, eps=self.eps)
        return F.conv2d(x, w.reshape_as(self.weight), self.bias, padding=1)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = StdConv2d(3, 8, 3, stride=2, padding=1)
        self.norm1 = nn.GroupNorm(4, 8)
        self.conv2 = StdConv2d(8, 8, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(4, 8)
        self.conv3 = ScaledStdConv2d(8, 8, 3)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm1(self.conv1(x)), inplace=True)
        x = F.relu(self.norm2(self.conv2(x)), inplace=True)
        x = F.mish(self.conv3(x))
        logits: Tensor = self.head(x.mean((2, 3)))
        return logits


def build() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Net(), (torch.randn(2, 3, 10, 10),)
