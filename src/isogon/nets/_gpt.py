"""GPT: a decoder over tokens, from GPT-2's form to that of small models today."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from isogon.errors import ArgumentError, check_choice
from isogon.nets._transformer import (
    BlockOptions,
    MlpActivation,
    StreamNorm,
    initialise_blocks,
    make_blocks,
    make_rotation,
)
from isogon.nets.layers import check_sizes


class Gpt(nn.Module):
    """Tokens (batch, positions) → logits (batch, positions, vocabulary)."""

    def __init__(self, vocab: int, context: int, options: BlockOptions, *, tied: bool) -> None:
        super().__init__()
        self.context = context
        self.embedding = nn.Embedding(vocab, options.width)
        self.positions = None if options.rope else nn.Parameter(torch.empty(context, options.width))
        self.blocks = make_blocks(options)
        self.norm = options.make_norm()
        self.head = nn.Linear(options.width, vocab, bias=False)
        initialise_blocks(self, options.depth)
        for table in (self.embedding.weight, self.positions):
            if table is not None:
                nn.init.normal_(table, std=0.02)
        if tied:
            self.head.weight = self.embedding.weight
        self.dropout = nn.Dropout(options.dropout)
        cosines, sines = make_rotation(context if options.rope else 0, options.width // options.heads)
        self.register_buffer("cosines", cosines, persistent=False)
        self.register_buffer("sines", sines, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[-1]
        if length > self.context:
            raise ArgumentError("tokens", f"at most the context of {self.context}", length, "cut them, or widen it")
        x = self.embedding(tokens)
        if self.positions is not None:
            x = x + self.positions[:length]
        x = self.dropout(x)
        rotation = None if self.positions is not None else (self.cosines, self.sines)
        for block in self.blocks:
            x = block(x, rotation)
        logits: Tensor = self.head(self.norm(x))
        return logits


def gpt(
    vocab: int = 256,
    context: int = 128,
    *,
    depth: int = 4,
    width: int = 128,
    heads: int = 4,
    norm: StreamNorm = "rms",
    affine: bool = False,
    qk_norm: bool = True,
    activation: MlpActivation = "relu2",
    positions: Literal["rope", "learned"] = "rope",
    tied: bool = False,
    bias: bool = False,
    dropout: float = 0.0,
) -> Gpt:
    """A GPT over `vocab` tokens and `context` positions, `depth` blocks of `width` channels in `heads` heads.

    The defaults are those of small models today: RMS norms without `affine`, normalised queries and keys, relu², rotary
    positions, a head of its own. So queries, keys and the residual stream are scale-invariant (`isogon.symmetries`).

    | model                  | options                                                                          |
    |------------------------|----------------------------------------------------------------------------------|
    | GPT-2 (124,439,808)    | `gpt(50257, 1024, depth=12, width=768, heads=12, norm="layer", affine=True,`     |
    |                        | `qk_norm=False, activation="gelu", positions="learned", tied=True, bias=True)`   |
    | like Llama             | `gpt(…, affine=True, qk_norm=False, activation="swiglu")`                        |

    >>> gpt(256, 16, depth=1, width=8, heads=2)(torch.zeros(2, 5, dtype=torch.long)).shape
    torch.Size([2, 5, 256])
    """
    check_sizes(vocab=vocab, context=context)
    check_choice("positions", positions, ("rope", "learned"))
    options = BlockOptions(
        depth=depth, width=width, heads=heads, norm=norm, affine=affine, bias=bias, qk_norm=qk_norm,
        activation=activation, causal=True, rope=positions == "rope", dropout=dropout,
    )  # fmt: skip
    return Gpt(vocab, context, options, tied=tied)
