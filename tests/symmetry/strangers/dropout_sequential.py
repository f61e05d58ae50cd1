"""One nn.Sequential: a perceptron with batch norm, dropout and biases, its logits normalised too."""

from __future__ import annotations

import torch
from torch import Tensor, nn

JOINT_INVARIANT = True
INVARIANT_ALONE = {f"{i}.{kind}" for i in (1, 5, 9) for kind in ("weight", "bias")}
WHY = (
    "Batch norm follows each linear layer and removes its bias, affine lifts the degree to 1, dropout "
    "keeps it, and the logits' norm has no affine."
)


def build() -> tuple[nn.Module, tuple[Tensor, ...]]:
    model = nn.Sequential(
        nn.Flatten(),
        nn.Linear(2 * 5 * 5, 16),
        nn.BatchNorm1d(16),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Linear(16, 16),
        nn.BatchNorm1d(16),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Linear(16, 4),
        nn.BatchNorm1d(4, affine=False),
    )
    return model, (torch.randn(8, 2, 5, 5),)
