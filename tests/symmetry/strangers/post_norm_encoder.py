"""torch's own TransformerEncoder, post-norm, with a padding mask and a cosine classifier."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

JOINT_INVARIANT = False
INVARIANT_ALONE = {"prototypes"}
WHY = "Scores grow with the packed projections, and each norm sees a sum of unlike degrees; only cosines are free."


class Encoder(nn.Module):
    def __init__(self, vocab: int = 15, dim: int = 12, classes: int = 4) -> None:
        super().__init__()
        self.words = nn.Embedding(vocab, dim, padding_idx=0)
        layer = nn.TransformerEncoderLayer(dim, nhead=3, dim_feedforward=20, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.prototypes = nn.Parameter(torch.randn(classes, dim))

    def forward(self, tokens: Tensor) -> Tensor:
        padding = tokens.eq(0)
        hidden = self.encoder(self.words(tokens), src_key_padding_mask=padding)
        pooled = hidden.masked_fill(padding.unsqueeze(-1), 0.0).sum(dim=1)
        return 16.0 * F.linear(F.normalize(pooled), F.normalize(self.prototypes))


def build() -> tuple[nn.Module, tuple[Tensor, ...]]:
    tokens = torch.randint(1, 15, (3, 7))
    tokens[0, 5:] = 0
    return Encoder(), (tokens,)
