"""Attention in einsum with normalised queries and keys; branches normalised as they leave."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, einsum, nn

JOINT_INVARIANT = True
INVARIANT_ALONE = {
    *(f"{block}.{w}" for block in ("first", "second") for w in ("to_q", "to_k", "to_v", "to_out", "up", "down")),
    "embed",
}
WHY = (
    "Cosine scores have degree 0, values and outputs are linear and end in a norm without gain, as "
    "the squared-ReLU branch does, so each matrix is free by itself and all are together."
)


class Block(nn.Module):
    def __init__(self, dim: int, heads: int, eps: float) -> None:
        super().__init__()
        inner = dim // heads
        self.eps = eps
        self.to_q = nn.Parameter(torch.randn(heads, dim, inner) * dim**-0.5)
        self.to_k = nn.Parameter(torch.randn(heads, dim, inner) * dim**-0.5)
        self.to_v = nn.Parameter(torch.randn(heads, dim, inner) * dim**-0.5)
        self.to_out = nn.Parameter(torch.randn(heads, inner, dim) * dim**-0.5)
        self.up = nn.Parameter(torch.randn(dim, 3 * dim) * dim**-0.5)
        self.down = nn.Parameter(torch.randn(3 * dim, dim) * dim**-0.5)

    def rms(self, x: Tensor) -> Tensor:
        return x / torch.sqrt(torch.mean(x**2, dim=-1, keepdim=True) + self.eps)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q = F.normalize(einsum("btd,hdc->bhtc", x, self.to_q), dim=-1)
        k = F.normalize(einsum("btd,hdc->bhtc", x, self.to_k), p=2.0, dim=-1)
        v = einsum("btd,hdc->bhtc", x, self.to_v)
        scores = 8.0 * einsum("bhic,bhjc->bhij", q, k)
        scores = torch.where(mask[:, None, None, :], scores, torch.finfo(scores.dtype).min)
        mixed = einsum("bhij,bhjc->bhic", scores.softmax(-1), v)
        x = x + self.rms(einsum("bhtc,hcd->btd", mixed, self.to_out))
        return x + self.rms(F.relu(x @ self.up).square() @ self.down)


class Net(nn.Module):
    def __init__(self, vocab: int = 13, dim: int = 8, eps: float = 1e-6) -> None:
        super().__init__()
        self.embed = nn.Parameter(torch.randn(vocab, dim))
        self.first = Block(dim, 2, eps)
        self.second = Block(dim, 2, eps)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        x = F.normalize(F.embedding(tokens, self.embed), dim=-1)
        x = self.second(self.first(x, mask), mask)
        weight = mask.unsqueeze(-1).to(x.dtype)
        pooled: Tensor = (x * weight).sum(1) / weight.sum(1)
        return pooled


def build() -> tuple[nn.Module, tuple[Tensor, ...]]:
    lengths = torch.tensor([6, 4, 5])
    mask = torch.arange(6)[None, :] < lengths[:, None]
    return Net(), (torch.randint(0, 13, (3, 6)), mask)
