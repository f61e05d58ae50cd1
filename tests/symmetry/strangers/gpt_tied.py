"""A GPT in the nanoGPT manner: pre-norm blocks, dropout, fused qkv, output tied to the token embedding."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

JOINT_INVARIANT = False
INVARIANT_ALONE: set[str] = set()
WHY = "Every branch joins a residual stream it does not rescale with, and the tied head multiplies a LayerNorm."


class CausalSelfAttention(nn.Module):
    causal: Tensor

    def __init__(self, width: int, heads: int, block: int, dropout: float) -> None:
        super().__init__()
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)
        self.resid_dropout = nn.Dropout(dropout)
        self.heads = heads
        self.register_buffer("causal", torch.tril(torch.ones(block, block)).view(1, 1, block, block))

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.size()
        q, k, v = self.c_attn(x).split(c, dim=2)
        q = q.view(b, t, self.heads, c // self.heads).transpose(1, 2)
        k = k.view(b, t, self.heads, c // self.heads).transpose(1, 2)
        v = v.view(b, t, self.heads, c // self.heads).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.causal[:, :, :t, :t] == 0, float("-inf"))
        y = F.softmax(att, dim=-1) @ v
        y = y.transpose(1, 2).contiguous().view(b, t, c)
        out: Tensor = self.resid_dropout(self.c_proj(y))
        return out


class Block(nn.Module):
    def __init__(self, width: int, heads: int, block: int, dropout: float) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.attn = CausalSelfAttention(width, heads, block, dropout)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(width, 4 * width), "c_proj": nn.Linear(4 * width, width)})

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        y = F.gelu(self.mlp["c_fc"](self.ln_2(x)), approximate="tanh")
        y = self.mlp["c_proj"](y)
        return torch.add(x, y)


class GPT(nn.Module):
    def __init__(self, vocab: int, width: int, heads: int, layers: int, block: int, dropout: float) -> None:
        super().__init__()
        wte = nn.Embedding(vocab, width)
        self.transformer = nn.ModuleDict(
            {
                "wte": wte,
                "wpe": nn.Embedding(block, width),
                "drop": nn.Dropout(dropout),
                "h": nn.ModuleList(Block(width, heads, block, dropout) for _ in range(layers)),
                "ln_f": nn.LayerNorm(width),
            }
        )
        self.lm_head = nn.Linear(width, vocab, bias=False)
        self.lm_head.weight = wte.weight

    def forward(self, idx: Tensor) -> Tensor:
        pos = torch.arange(0, idx.size(1), dtype=torch.long, device=idx.device)
        x = self.transformer["drop"](self.transformer["wte"](idx) + self.transformer["wpe"](pos))
        for block in self.transformer.get_submodule("h").children():
            x = block(x)
        logits: Tensor = self.lm_head(self.transformer["ln_f"](x))
        return logits


def build() -> tuple[nn.Module, tuple[Tensor, ...]]:
    model = GPT(vocab=17, width=16, heads=2, layers=2, block=8, dropout=0.1)
    return model, (torch.randint(0, 17, (2, 7)),)
