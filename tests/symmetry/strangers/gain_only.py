"""Norms with a gain and no shift: RMS norm, layer norm, batch norm with its bias frozen at zero."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

JOINT_INVARIANT = True
INVARIANT_ALONE = {f"{module}.weight" for module in ("lin1", "rms", "lin2", "ln", "lin3", "bn", "lin4")}
WHY = "A gain alone is one more linear factor before the next norm, and the last norm has none."


class GainOnly(nn.Module):
    def __init__(self, dim: int = 8) -> None:
        super().__init__()
        self.lin1 = nn.Linear(dim, dim, bias=False)
        self.lin2 = nn.Linear(dim, dim, bias=False)
        self.lin3 = nn.Linear(dim, dim, bias=False)
        self.lin4 = nn.Linear(dim, dim, bias=False)
        self.rms = nn.RMSNorm(dim, eps=1e-6)
        self.ln = nn.LayerNorm(dim, bias=False)
        self.bn = nn.BatchNorm1d(dim)
        self.bn.bias.requires_grad = False
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.rms(self.lin1(x)))
        x = F.relu(self.ln(self.lin2(x)))
        x = F.relu(self.bn(self.lin3(x)))
        x = F.rms_norm(self.lin4(x), (self.dim,))
        return torch.sigmoid(x)


def build() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return GainOnly(), (torch.randn(9, 8),)
