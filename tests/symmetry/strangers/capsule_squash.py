"""Capsules: the squash s·‖s‖/(1 + ‖s‖²) resembles a normalisation, but its 1 is no small constant."""

from __future__ import annotations

import torch
from torch import Tensor, nn

JOINT_INVARIANT = False
INVARIANT_ALONE = {"primary.weight", "primary.bias"}
WHY = "Squash shrinks short vectors more than long ones; only the convolution before batch norm is free."


def squash(s: Tensor, eps: float) -> Tensor:
    square = (s**2).sum(dim=-1, keepdim=True)
    return square / (1.0 + square) * s / torch.sqrt(square + eps)


class Capsules(nn.Module):
    def __init__(self, capsules: int, inner: int, classes: int, outer: int, eps: float = 1e-8) -> None:
        super().__init__()
        self.inner, self.eps = inner, eps
        self.primary = nn.Conv2d(1, capsules * inner, 4, stride=2)
        self.norm = nn.BatchNorm2d(capsules * inner)
        self.votes = nn.Parameter(0.3 * torch.randn(capsules * 9, classes, inner, outer))

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.primary(x))
        u = squash(x.flatten(2).transpose(1, 2).reshape(x.shape[0], -1, self.inner), self.eps)
        votes = torch.einsum("bni,ncio->bnco", u, self.votes)
        agreement = torch.zeros_like(votes[..., 0])
        for _ in range(2):
            coupling = torch.softmax(agreement, dim=-1)
            out = squash((coupling.unsqueeze(-1) * votes).sum(dim=1), self.eps)
            agreement = agreement + (votes * out.unsqueeze(1)).sum(-1)
        lengths: Tensor = torch.linalg.vector_norm(out, dim=-1)
        return lengths


def build() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Capsules(capsules=4, inner=3, classes=3, outer=5), (torch.randn(3, 1, 8, 8),)
