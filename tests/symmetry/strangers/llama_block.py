"""A Llama-style decoder: RMS norm written out, rotary positions, grouped heads, SwiGLU, no biases."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

JOINT_INVARIANT = False
INVARIANT_ALONE: set[str] = set()
WHY = "Scores, SiLU gates and the residual sums all see the scale of the weights; only the stream itself is normalised."


class RMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


def rotate_half(x: Tensor) -> Tensor:
    left, right = x.chunk(2, dim=-1)
    return torch.cat((-right, left), dim=-1)


class Attention(nn.Module):
    cos: Tensor
    sin: Tensor

    def __init__(self, dim: int, heads: int, kv_heads: int, length: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, dim // heads
        self.wq = nn.Linear(dim, dim, bias=False)
        self.wk = nn.Linear(dim, kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(dim, kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)
        speed = 100.0 ** -(torch.arange(0, self.head_dim, 2).float() / self.head_dim)
        angle = torch.outer(torch.arange(length).float(), speed).repeat(1, 2)
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def rotate(self, x: Tensor) -> Tensor:
        t = x.shape[-2]
        return x * self.cos[:t] + rotate_half(x) * self.sin[:t]

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        q = self.rotate(self.wq(x).view(b, t, self.heads, self.head_dim).transpose(1, 2))
        k = self.rotate(self.wk(x).view(b, t, self.kv_heads, self.head_dim).transpose(1, 2))
        v = self.wv(x).view(b, t, self.kv_heads, self.head_dim).transpose(1, 2)
        k, v = (z.repeat_interleave(self.heads // self.kv_heads, dim=1) for z in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.wo(y.transpose(1, 2).reshape(b, t, -1))
        return out


class FeedForward(nn.Module):
    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(dim, hidden, bias=False)
        self.w2 = nn.Linear(hidden, dim, bias=False)
        self.w3 = nn.Linear(dim, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.w2(F.silu(self.w1(x)) * self.w3(x))
        return y


class DecoderLayer(nn.Module):
    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.attention = Attention(dim, heads=4, kv_heads=2, length=16)
        self.feed_forward = FeedForward(dim, 24)
        self.attention_norm = RMSNorm(dim, eps)
        self.ffn_norm = RMSNorm(dim, eps)

    def forward(self, x: Tensor) -> Tensor:
        h = x + self.attention(self.attention_norm(x))
        out: Tensor = h + self.feed_forward(self.ffn_norm(h))
        return out


class Llama(nn.Module):
    def __init__(self, vocab: int, dim: int, layers: int, eps: float) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList(DecoderLayer(dim, eps) for _ in range(layers))
        self.norm = RMSNorm(dim, eps)
        self.output = nn.Linear(dim, vocab, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.tok_embeddings(tokens)
        for layer in self.layers:
            h = layer(h)
        logits: Tensor = self.output(self.norm(h)).float()
        return logits


def build() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Llama(vocab=19, dim=16, layers=2, eps=1e-5), (torch.randint(0, 19, (2, 6)),)
