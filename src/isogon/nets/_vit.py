"""ViT (Dosovitskiy et al. 2021): a transformer over the patches of an image."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from isogon.errors import ArgumentError, check_choice
from isogon.nets._transformer import BlockOptions, MlpActivation, StreamNorm, initialise_blocks, make_blocks
from isogon.nets.layers import check_sizes


class Vit(nn.Module):
    """Images (batch, channels, side, side) → logits (batch, classes)."""

    def __init__(
        self, num_classes: int, in_channels: int, image_size: int, patch: int, options: BlockOptions, *, token: bool
    ) -> None:
        super().__init__()
        self.image_size = image_size
        patches = (image_size // patch) ** 2
        self.class_token = nn.Parameter(torch.empty(1, 1, options.width)) if token else None
        self.positions = nn.Parameter(torch.empty(patches + token, options.width))
        self.patches = nn.Conv2d(in_channels, options.width, patch, patch, bias=options.bias)
        self.dropout = nn.Dropout(options.dropout)
        self.blocks = make_blocks(options)
        self.norm = options.make_norm()
        self.head = nn.Linear(options.width, num_classes, bias=options.bias)
        initialise_blocks(self, options.depth)
        for table in (self.class_token, self.positions):
            if table is not None:
                nn.init.normal_(table, std=0.02)

    def forward(self, images: Tensor) -> Tensor:
        if images.shape[-2:] != (self.image_size, self.image_size):
            sides = tuple(images.shape[-2:])
            raise ArgumentError("images", f"{self.image_size} × {self.image_size} pixels", sides, "give image_size")
        x = self.patches(images).flatten(-2).transpose(-1, -2)
        if self.class_token is not None:
            x = torch.cat([self.class_token.expand(len(x), -1, -1), x], 1)
        x = self.dropout(x + self.positions)
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        logits: Tensor = self.head(x[:, 0] if self.class_token is not None else x.mean(1))
        return logits


def vit(
    num_classes: int = 10,
    in_channels: int = 3,
    *,
    image_size: int = 32,
    patch: int = 4,
    depth: int = 12,
    width: int = 192,
    heads: int = 3,
    norm: StreamNorm = "layer",
    affine: bool = True,
    qk_norm: bool = False,
    activation: MlpActivation = "gelu",
    pool: Literal["token", "mean"] = "token",
    bias: bool = True,
    dropout: float = 0.0,
    drop_path: float = 0.0,
) -> Vit:
    """A ViT: ViT-Tiny for CIFAR by default; `vit(1000, image_size=224, patch=16)` is ViT-Tiny/16 (5,717,416 weights).

    `pool` reads the class from a token of its own or from the mean of all patches; `drop_path` leaves out whole
    branches of a sample at random, up to this share in the last block.

    >>> vit(10, 1, image_size=8, patch=4, depth=1, width=8, heads=2)(torch.zeros(2, 1, 8, 8)).shape
    torch.Size([2, 10])
    """
    check_sizes(num_classes=num_classes, in_channels=in_channels, image_size=image_size, patch=patch)
    check_choice("pool", pool, ("token", "mean"))
    if image_size % patch:
        raise ArgumentError("patch", f"a divisor of the image's side {image_size}", patch, "change one of the two")
    options = BlockOptions(
        depth=depth, width=width, heads=heads, norm=norm, affine=affine, bias=bias, qk_norm=qk_norm,
        activation=activation, causal=False, dropout=dropout, drop_path=drop_path,
    )  # fmt: skip
    return Vit(num_classes, in_channels, image_size, patch, options, token=pool == "token")
