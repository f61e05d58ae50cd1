"""A SimCLR-style module that takes two views and returns the scalar contrastive loss itself."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

JOINT_INVARIANT = True
INVARIANT_ALONE = {"trunk.0.weight", "projector.0.weight", "projector.3.weight"}
WHY = (
    "Convolution and first linear layer end in batch norm, the bias-free last one in L2 "
    "normalisation, with a fixed temperature; the norms' affine is homogeneous only as a pair, and "
    "not alone."
)


class SimCLR(nn.Module):
    def __init__(self, temperature: float = 0.2) -> None:
        super().__init__()
        self.temperature = temperature
        self.trunk = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.AvgPool2d(3)
        )
        self.projector = nn.Sequential(
            nn.Linear(8, 12, bias=False), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 6, bias=False)
        )

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        n = first.shape[0]
        z = self.trunk(torch.cat([first, second])).flatten(1)
        z = F.normalize(self.projector(z), dim=1)
        similarity = z @ z.t() / self.temperature
        similarity = similarity.masked_fill(torch.eye(2 * n, dtype=torch.bool, device=z.device), -1e9)
        target = torch.arange(2 * n, device=z.device).roll(n)
        return F.cross_entropy(similarity, target)


def build() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return SimCLR(), (torch.randn(5, 3, 7, 7), torch.randn(5, 3, 7, 7))
