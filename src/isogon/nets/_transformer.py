"""The blocks of GPT and ViT: attention and MLP, each behind a norm and added to the residual stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isogon.errors import ArgumentError, check_choice, check_number, check_whole

StreamNorm = Literal["rms", "layer"]
MlpActivation = Literal["relu2", "gelu", "swiglu"]


@dataclass(frozen=True, kw_only=True)
class BlockOptions:
    """What all blocks of a transformer have alike; see `nets.gpt` for what each means."""

    depth: int
    width: int
    heads: int
    norm: StreamNorm
    affine: bool
    bias: bool
    qk_norm: bool
    activation: MlpActivation
    causal: bool
    rope: bool = False
    dropout: float = 0.0
    drop_path: float = 0.0

    def __post_init__(self) -> None:
        for name in ("depth", "width", "heads"):
            check_whole(name, getattr(self, name), cure="give a whole number")
        if self.width % self.heads:
            raise ArgumentError("heads", f"a divisor of the width {self.width}", self.heads, "change one of the two")
        if self.rope and (self.width // self.heads) % 2:
            rule = "such that a head has an even width, which rotary positions turn in pairs"
            raise ArgumentError("heads", rule, self.heads, "change heads, or positions to 'learned'")
        check_choice("norm", self.norm, ("rms", "layer"))
        check_choice("activation", self.activation, ("relu2", "gelu", "swiglu"))
        for name in ("dropout", "drop_path"):
            check_number(name, getattr(self, name), low=0, high=1, high_open=True, cure="give 0 for none")

    def make_norm(self, width: int | None = None, *, affine: bool | None = None) -> nn.Module:
        width, affine = width or self.width, self.affine if affine is None else affine
        if self.norm == "rms":
            return nn.RMSNorm(width, elementwise_affine=affine)
        return nn.LayerNorm(width, elementwise_affine=affine, bias=affine and self.bias)


class Attention(nn.Module):
    """Softmax attention in several heads; with `qk_norm` queries and keys of each head are normalised before."""

    def __init__(self, options: BlockOptions) -> None:
        super().__init__()
        width, self.heads, self.causal = options.width, options.heads, options.causal
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=options.bias) for _ in range(4))
        self.head_norm = options.make_norm(width // options.heads, affine=False) if options.qk_norm else None

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor] | None) -> Tensor:
        q, k, v = (layer(x).unflatten(-1, (self.heads, -1)).transpose(-2, -3) for layer in (self.q, self.k, self.v))
        if self.head_norm is not None:
            q, k = self.head_norm(q), self.head_norm(k)
        if rotation is not None:
            q, k = rotate(q, *rotation), rotate(k, *rotation)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        written: Tensor = self.o(mixed.transpose(-2, -3).flatten(-2))
        return written


class Mlp(nn.Module):
    """Up, a function, down; for SwiGLU the function is a product with a gate, in two thirds of the width."""

    def __init__(self, options: BlockOptions) -> None:
        super().__init__()
        self.activation = options.activation
        inner = 4 * options.width
        self.gate: nn.Linear | None = None
        if options.activation == "swiglu":
            inner = round(inner * 2 / 3)
            self.gate = nn.Linear(options.width, inner, bias=options.bias)
        self.up = nn.Linear(options.width, inner, bias=options.bias)
        self.down = nn.Linear(inner, options.width, bias=options.bias)

    def forward(self, x: Tensor) -> Tensor:
        if self.gate is not None:
            inner = F.silu(self.gate(x)) * self.up(x)
        elif self.activation == "gelu":
            inner = F.gelu(self.up(x))
        else:
            inner = F.relu(self.up(x)).square()
        down: Tensor = self.down(inner)
        return down


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, options: BlockOptions, drop_path: float) -> None:
        super().__init__()
        self.attention_norm, self.attention = options.make_norm(), Attention(options)
        self.mlp_norm, self.mlp = options.make_norm(), Mlp(options)
        self.dropout, self.drop_path = options.dropout, drop_path

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor] | None = None) -> Tensor:
        x = x + self._drop(self.attention(self.attention_norm(x), rotation))
        return x + self._drop(self.mlp(self.mlp_norm(x)))

    def _drop(self, branch: Tensor) -> Tensor:
        """Dropout, and stochastic depth: the whole branch of a sample left out, the others made up for it."""
        branch = F.dropout(branch, self.dropout, self.training)
        if self.drop_path and self.training:
            stays = torch.rand(len(branch), *[1] * (branch.dim() - 1), device=branch.device) >= self.drop_path
            branch = branch * stays.to(branch.dtype) / (1 - self.drop_path)
        return branch


def make_blocks(options: BlockOptions) -> nn.ModuleList:
    """The row of blocks; stochastic depth grows linearly to `drop_path` at the last."""
    last = max(1, options.depth - 1)
    return nn.ModuleList(Block(options, options.drop_path * number / last) for number in range(options.depth))


def initialise_blocks(model: nn.Module, depth: int) -> None:
    """Normal weights of deviation 0.02, divided by √(2·depth) where they write into the stream (GPT-2's); biases 0."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            into_stream = name.endswith((".o", ".down"))
            nn.init.normal_(module.weight, std=0.02 / (2 * depth) ** 0.5 if into_stream else 0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def make_rotation(context: int, width: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines by position of rotary embeddings (Su et al.): pairs of channels turn at 10000^(−2i/width)."""
    rates = 10_000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = torch.arange(context, dtype=torch.float64)[:, None] * rates
    return angles.cos().float(), angles.sin().float()


def rotate(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """x (…, positions, channels) with channel i and i + half turned by the angle of its position."""
    length = x.shape[-2]
    cosines, sines = cosines[:length].to(x.dtype), sines[:length].to(x.dtype)
    first, second = x.chunk(2, -1)
    return torch.cat([first * cosines - second * sines, second * cosines + first * sines], -1)
