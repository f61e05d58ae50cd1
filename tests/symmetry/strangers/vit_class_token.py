"""A vision transformer with class token, learned positions, separate query, key and value layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

JOINT_INVARIANT = False
INVARIANT_ALONE = {"mask_token", "blocks.0.key.bias", "blocks.1.key.bias"}
WHY = (
    "A key bias adds the same number to all scores of one query, which softmax ignores; the mask "
    "token is unused; all the rest meets a residual sum or the LayerNorms' trainable affine."
)


class EncoderBlock(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_before_attention = nn.LayerNorm(dim, eps=1e-6)
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim)
        self.value = nn.Linear(dim, dim)
        self.output = nn.Linear(dim, dim)
        self.norm_before_mlp = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def split_heads(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        return x.view(b, t, self.heads, d // self.heads).permute(0, 2, 1, 3)

    def forward(self, hidden: Tensor) -> Tensor:
        normed = self.norm_before_attention(hidden)
        context = F.scaled_dot_product_attention(
            self.split_heads(self.query(normed)),
            self.split_heads(self.key(normed)),
            self.split_heads(self.value(normed)),
        )
        hidden = hidden + self.output(context.permute(0, 2, 1, 3).flatten(2))
        return torch.add(hidden, self.mlp(self.norm_before_mlp(hidden)))


class VisionTransformer(nn.Module):
    def __init__(self, dim: int, patch: int, image: int, depth: int, classes: int) -> None:
        super().__init__()
        patches = (image // patch) ** 2
        self.patch_embed = nn.Conv2d(3, dim, kernel_size=patch, stride=patch)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.mask_token = nn.Parameter(torch.zeros(1, 1, dim))  # for masked pre-training only
        self.pos_embed = nn.Parameter(0.02 * torch.randn(1, patches + 1, dim))
        self.blocks = nn.ModuleList([EncoderBlock(dim, heads=2) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.head = nn.Linear(dim, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patch_embed(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.cls_token.expand(x.shape[0], -1, -1), x), dim=1) + self.pos_embed
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x)[:, 0])
        return logits


def build() -> tuple[nn.Module, tuple[Tensor, ...]]:
    model = VisionTransformer(dim=12, patch=4, image=12, depth=2, classes=5)
    return model, (torch.randn(3, 3, 12, 12),)
