"""A small MobileNet-like net with squeeze-excitation and hard activations."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

JOINT_INVARIANT = False
INVARIANT_ALONE = {
    "stem.0.weight",
    *(f"{block}.{conv}.0.weight" for block in ("block1", "block2") for conv in ("expand", "depthwise", "project")),
    "block1.project.1.bias",
}
WHY = (
    "Convolutions end in batch norm; the excitation's hard sigmoid sees a degree-1 tensor, so jointly "
    "it breaks. The shift of block1's last norm is one constant a channel, and so it stays through "
    "the residual sum and the 1×1 convolution of block2, whose norm removes it."
)


def conv_bn(inside: int, outside: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inside, outside, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outside),
    )


class SqueezeExcitation(nn.Module):
    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.reduce = nn.Conv2d(channels, squeezed, 1)
        self.restore = nn.Conv2d(squeezed, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        scale = F.adaptive_avg_pool2d(x, 1)
        scale = self.restore(F.relu(self.reduce(scale)))
        return x * F.hardsigmoid(scale)


class Bottleneck(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        middle = 2 * inside
        self.expand = conv_bn(inside, middle, 1)
        self.depthwise = conv_bn(middle, middle, 3, stride, groups=middle)
        self.se = SqueezeExcitation(middle, 4)
        self.project = conv_bn(middle, outside, 1)
        self.residual = stride == 1 and inside == outside

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = F.hardswish(self.expand(x))
        y = F.hardswish(self.depthwise(y))
        y = self.project(self.se(y))
        if self.residual:
            y = y + x
        return y


class SENet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 6, 3, 2)
        self.block1 = Bottleneck(6, 6, 1)
        self.block2 = Bottleneck(6, 8, 2)
        self.classifier = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.hardswish(self.stem(x))
        x = self.block2(self.block1(x))
        logits: Tensor = self.classifier(x.mean(dim=(-2, -1)))
        return logits


def build() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return SENet(), (torch.randn(3, 3, 12, 12),)
