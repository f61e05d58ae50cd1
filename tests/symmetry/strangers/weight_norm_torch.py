"""Convolutions and linear layers under torch's weight_norm parametrisation, with biases."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

JOINT_INVARIANT = False
INVARIANT_ALONE = {f"{i}.parametrizations.weight.original1" for i in (0, 2, 6)}
WHY = "weight_norm uses g · v/‖v‖: the direction v (original1) is free, the length g (original0) and biases are not."


def build() -> tuple[nn.Module, tuple[Tensor, ...]]:
    model = nn.Sequential(
        weight_norm(nn.Conv1d(3, 8, 5)),
        nn.SiLU(),
        weight_norm(nn.Conv1d(8, 8, 3, dilation=2)),
        nn.SiLU(),
        nn.AdaptiveAvgPool1d(2),
        nn.Flatten(1),
        weight_norm(nn.Linear(16, 4), dim=None),  # type: ignore[arg-type]
    )
    return model, (torch.randn(2, 3, 20),)
