"""Two towers compared by cosine under a trainable temperature, as in CLIP; returns two matrices."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

JOINT_INVARIANT = False
INVARIANT_ALONE = {"visual.0.weight", "visual.0.bias", "visual.4.weight", "table", "text_projection"}
WHY = (
    "The embeddings are of degree 0, the temperature exp(logit_scale) is not homogeneous; the visual "
    "tower's convolution ends in batch norm, the text tower is a product of two matrices before the "
    "L2 norm."
)


class TwoTowers(nn.Module):
    def __init__(self, dim: int = 6) -> None:
        super().__init__()
        self.visual = nn.Sequential(
            nn.Conv2d(1, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.Flatten(), nn.Linear(5 * 16, dim, bias=False)
        )
        self.table = nn.Parameter(torch.randn(11, 8))
        self.text_projection = nn.Parameter(torch.randn(8, dim) * 8**-0.5)
        self.logit_scale = nn.Parameter(torch.ones([]) * math.log(1 / 0.07))

    def forward(self, images: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        image = self.visual(images)
        text = self.table[tokens].mean(dim=1) @ self.text_projection
        image = image / image.norm(dim=1, keepdim=True)
        text = text / text.norm(dim=1, keepdim=True)
        per_image = self.logit_scale.exp() * image @ text.t()
        return per_image, per_image.t()


def build() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return TwoTowers(), (torch.randn(4, 1, 6, 6), torch.randint(0, 11, (4, 5)))
