"""Depthwise-separable convolutions with biases and instance norm, in evaluation mode."""

from __future__ import annotations

import torch
from torch import Tensor, nn

JOINT_INVARIANT = True
INVARIANT_ALONE = {
    f"{i}.{conv}.{kind}" for i in (0, 2) for conv in ("depthwise", "pointwise") for kind in ("weight", "bias")
}
WHY = (
    "Instance norm uses its own statistics in evaluation too; the depthwise bias is still one "
    "constant a channel after the 1×1 convolution, so the norm removes both biases; the last norm has "
    "no affine."
)


class Separable(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int, affine: bool) -> None:
        super().__init__()
        self.pad = nn.ReflectionPad2d(1)
        self.depthwise = nn.Conv2d(inside, inside, 3, stride=stride, groups=inside)
        self.pointwise = nn.Conv2d(inside, outside, 1)
        self.norm = nn.InstanceNorm2d(outside, affine=affine)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(self.pointwise(self.depthwise(self.pad(x))))
        return y


def build() -> tuple[nn.Module, tuple[Tensor, ...]]:
    model = nn.Sequential(Separable(3, 6, 2, affine=True), nn.ReLU(), Separable(6, 4, 1, affine=False), nn.Tanh())
    return model.eval(), (torch.randn(2, 3, 10, 10),)
