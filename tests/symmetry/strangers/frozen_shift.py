"""Batch norm whose shift is frozen at a positive number (to wake the ReLUs) while its gain trains."""

from __future__ import annotations

import torch
from torch import Tensor, nn

JOINT_INVARIANT = False
INVARIANT_ALONE = {"0.weight", "3.weight"}
WHY = "γ x + β with a constant β ≠ 0 is not homogeneous in γ; the convolutions before the norms are free."


def build() -> tuple[nn.Module, tuple[Tensor, ...]]:
    norm = nn.BatchNorm2d(6)
    nn.init.constant_(norm.bias, 0.3)
    norm.bias.requires_grad_(False)
    model = nn.Sequential(
        nn.Conv2d(2, 6, 3, bias=False),
        norm,
        nn.ReLU(),
        nn.Conv2d(6, 4, 3, bias=False),
        nn.BatchNorm2d(4, affine=False),
        nn.AdaptiveMaxPool2d(1),
    )
    return model, (torch.randn(3, 2, 8, 8),)
