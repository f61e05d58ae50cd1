"""A graph network on a dense adjacency matrix, rows of unit length, cosine to class prototypes."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

JOINT_INVARIANT = True
INVARIANT_ALONE = {"w2", "prototypes"}
WHY = (
    "Rows are divided by their length after each layer; the first layer has a bias of its weight's "
    "degree, so these two are free together, the second layer and the prototypes by themselves."
)


class GraphNet(nn.Module):
    def __init__(self, features: int, hidden: int, classes: int, eps: float = 1e-8) -> None:
        super().__init__()
        self.eps = eps
        self.w1 = nn.Parameter(torch.randn(features, hidden) / math.sqrt(features))
        self.b1 = nn.Parameter(torch.zeros(hidden))
        self.w2 = nn.Parameter(torch.randn(hidden, hidden) / math.sqrt(hidden))
        self.prototypes = nn.Parameter(torch.randn(classes, hidden))

    def unit_rows(self, x: Tensor) -> Tensor:
        length: Tensor = x.norm(dim=-1, keepdim=True)
        return x / length.clamp(min=self.eps)

    def forward(self, nodes: Tensor, adjacency: Tensor) -> Tensor:
        a = adjacency + torch.eye(adjacency.size(-1), dtype=adjacency.dtype, device=adjacency.device)
        d = a.sum(-1) ** -0.5
        a = d.unsqueeze(-1) * a * d.unsqueeze(-2)
        h = self.unit_rows(torch.relu(torch.matmul(a, nodes @ self.w1) + self.b1))
        h = self.unit_rows(torch.bmm(a, h @ self.w2))
        graph = h.max(dim=1).values
        return torch.softmax(10.0 * graph @ self.unit_rows(self.prototypes).T, dim=-1)


def build() -> tuple[nn.Module, tuple[Tensor, ...]]:
    upper = torch.triu((torch.rand(2, 7, 7) < 0.4).float(), diagonal=1)
    return GraphNet(5, 9, 3), (torch.randn(2, 7, 5), upper + upper.mT)
