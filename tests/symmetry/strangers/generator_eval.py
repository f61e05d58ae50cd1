"""A DCGAN generator in evaluation mode whose batch norms keep no running statistics."""

from __future__ import annotations

import torch
from torch import Tensor, nn

JOINT_INVARIANT = False
INVARIANT_ALONE = {"main.0.weight", "main.3.weight"}
WHY = "Without stored statistics batch norm normalises in evaluation too; the last layer goes to tanh without a norm."


class Generator(nn.Module):
    def __init__(self, latent: int = 5, width: int = 4) -> None:
        super().__init__()
        self.main = nn.Sequential(
            nn.ConvTranspose2d(latent, 2 * width, 4, 1, 0, bias=False),
            nn.BatchNorm2d(2 * width, track_running_stats=False),
            nn.ReLU(True),
            nn.ConvTranspose2d(2 * width, width, 4, 2, 1, bias=False),
            nn.BatchNorm2d(width, track_running_stats=False),
            nn.ReLU(True),
            nn.Conv2d(width, 4 * 3, 3, 1, 1, bias=False),
            nn.PixelShuffle(2),
            nn.Tanh(),
        )

    def forward(self, z: Tensor) -> Tensor:
        image: Tensor = self.main(z[:, :, None, None])
        return image


def build() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Generator().eval(), (torch.randn(4, 5),)
