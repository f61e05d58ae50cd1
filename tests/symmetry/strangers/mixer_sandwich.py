"""An MLP-Mixer whose branches are normalised at both ends, with stochastic depth and a frozen classifier."""

from __future__ import annotations

import torch
from torch import Tensor, nn

JOINT_INVARIANT = True
INVARIANT_ALONE = {
    f"layers.{layer}.{branch}.mlp.2.weight" for layer in (0, 1) for branch in ("token_mixing", "channel_mixing")
}
WHY = (
    "Each branch is ReLU(W x + b) with x of degree 0, so W and b rescale together, and the norm that "
    "closes the branch removes the factor; alone only the last, bias-free, matrix of a branch is "
    "free."
)


class SwapTokensAndChannels(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.movedim(-1, -2)


class DropPath(nn.Module):
    def __init__(self, drop: float) -> None:
        super().__init__()
        self.keep = 1.0 - drop

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        mask = x.new_empty((x.shape[0],) + (1,) * (x.ndim - 1)).bernoulli_(self.keep)
        mask.div_(self.keep)
        return x * mask


class Branch(nn.Module):
    def __init__(self, size: int, hidden: int, dim: int, transpose: bool) -> None:
        super().__init__()
        swap = SwapTokensAndChannels() if transpose else nn.Identity()
        self.pre = nn.LayerNorm(dim, elementwise_affine=False)
        self.mlp = nn.Sequential(nn.Linear(size, hidden), nn.ReLU(), nn.Linear(hidden, size, bias=False))
        self.swap = swap
        self.post = nn.LayerNorm(dim, elementwise_affine=False)
        self.drop_path = DropPath(0.2)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.swap(self.mlp(self.swap(self.pre(x))))
        y = self.drop_path(self.post(y))
        return x + y


def mixer_layer(tokens: int, dim: int) -> nn.Sequential:
    layer = nn.Sequential()
    layer.add_module("token_mixing", Branch(tokens, 2 * tokens, dim, transpose=True))
    layer.add_module("channel_mixing", Branch(dim, 2 * dim, dim, transpose=False))
    return layer


class Mixer(nn.Module):
    def __init__(self, tokens: int, patch: int, dim: int, classes: int) -> None:
        super().__init__()
        self.patch = patch
        self.stem = nn.Linear(3 * patch * patch, dim)
        self.stem_norm = nn.LayerNorm(dim, elementwise_affine=False)
        self.layers = nn.Sequential(*[mixer_layer(tokens, dim) for _ in range(2)])
        self.head = nn.Linear(dim, classes)
        self.head.requires_grad_(False)

    def forward(self, images: Tensor) -> Tensor:
        b, c, h, w = images.shape
        p = self.patch
        patches = images.reshape(b, c, h // p, p, w // p, p).permute(0, 2, 4, 1, 3, 5).reshape(b, -1, c * p * p)
        x = self.layers(self.stem_norm(self.stem(patches)))
        logits: Tensor = self.head(x.mean(dim=1))
        return logits


def build() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Mixer(tokens=9, patch=2, dim=10, classes=4), (torch.randn(4, 3, 6, 6),)
