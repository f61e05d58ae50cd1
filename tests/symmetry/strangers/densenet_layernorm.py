"""A DenseNet with layer norm over channels, last: concatenated degrees meet inside one normalisation."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

JOINT_INVARIANT = False
INVARIANT_ALONE = {"compress.weight"}
WHY = (
    "The stem has degree 1 and grown features 2, and the layer norm mixes both; only the compression, "
    "the sole input of the last norm, is free of its scale."
)


class ChannelsLastNorm(nn.Module):
    def __init__(self, channels: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(channels))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        x = x.permute(0, 2, 3, 1)
        x = F.layer_norm(x, (x.size(-1),), self.gain, None, self.eps)
        return x.permute(0, 3, 1, 2)


class DenseNet(nn.Module):
    def __init__(self, stem: int = 6, growth: int = 4, depth: int = 3) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, stem, 3, padding=1, bias=False)
        self.norms, self.convs = nn.ModuleList(), nn.ModuleList()
        for i in range(depth):
            self.norms.append(ChannelsLastNorm(stem + i * growth))
            self.convs.append(nn.Conv2d(stem + i * growth, growth, 3, padding=1, bias=False))
        self.compress = nn.Conv2d(stem + depth * growth, 8, 1, bias=False)
        self.last = nn.LayerNorm([8, 4, 4], elementwise_affine=False)

    def forward(self, x: Tensor) -> Tensor:
        features = [self.stem(x)]
        for norm, conv in zip(self.norms, self.convs, strict=True):
            features.append(conv(F.relu(norm(torch.cat(features, dim=1)))))
        x = F.avg_pool2d(self.compress(torch.cat(features, dim=1)), 2)
        return torch.amax(self.last(x), dim=(2, 3))


def build() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return DenseNet(), (torch.randn(2, 3, 8, 8),)
