"""A plain stack of biased convolutions with group norm; the last one has as many groups as channels."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn

JOINT_INVARIANT = False
INVARIANT_ALONE = {"conv3.weight", "conv3.bias"}
WHY = (
    "A per-channel bias survives a norm over groups of channels, so neither it nor its weight is "
    "free; with one channel a group the norm removes the bias. Jointly conv2 has degree 2 and its "
    "bias 1."
)


def build() -> tuple[nn.Module, tuple[Tensor, ...]]:
    model = nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(3, 8, 3, padding=1),
            norm1=nn.GroupNorm(2, 8),
            act1=nn.ReLU(),
            conv2=nn.Conv2d(8, 8, 3, stride=2, padding=1, groups=2),
            norm2=nn.GroupNorm(4, 8),
            act2=nn.ReLU(),
            conv3=nn.Conv2d(8, 6, 3),
            norm3=nn.GroupNorm(6, 6),
            act3=nn.ELU(),
            pool=nn.AdaptiveAvgPool2d(1),
            flat=nn.Flatten(),
            head=nn.Linear(6, 4),
        )
    )
    return model, (torch.randn(2, 3, 10, 10),)
