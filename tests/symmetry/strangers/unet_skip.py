"""A U-Net: double convolutions with biases and batch norm, transposed convolutions, concatenated skips."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

STAGES = ("down1", "down2", "bottom", "fuse2", "fuse1")
JOINT_INVARIANT = False
INVARIANT_ALONE = {f"{stage}.{i}.{kind}" for stage in STAGES for i in (0, 3) for kind in ("weight", "bias")}
WHY = (
    "Convolutions run straight into batch norm, which also removes their biases; the upsampling, the "
    "norms' affine and the output layer are not followed by a norm of their own."
)


def double_conv(inside: int, outside: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inside, outside, 3, padding=1),
        nn.BatchNorm2d(outside),
        nn.LeakyReLU(0.1, inplace=True),
        nn.Conv2d(outside, outside, 3, padding=1),
        nn.BatchNorm2d(outside),
        nn.LeakyReLU(0.1, inplace=True),
    )


class UNet(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.down1 = double_conv(1, width)
        self.down2 = double_conv(width, 2 * width)
        self.bottom = double_conv(2 * width, 4 * width)
        self.up2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.fuse2 = double_conv(4 * width, 2 * width)
        self.up1 = nn.Conv2d(2 * width, width, 1)
        self.fuse1 = double_conv(2 * width, width)
        self.out = nn.Conv2d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        skip1 = self.down1(x)
        skip2 = self.down2(F.max_pool2d(skip1, 2))
        x = self.bottom(F.max_pool2d(skip2, 2))
        x = self.fuse2(torch.cat([skip2, self.up2(x)], dim=1))
        x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
        x = self.up1(x)
        gap_h, gap_w = skip1.shape[-2] - x.shape[-2], skip1.shape[-1] - x.shape[-1]
        x = F.pad(x, [0, gap_w, 0, gap_h])
        x = self.fuse1(torch.cat([skip1, x], dim=1))
        return torch.sigmoid(self.out(x))


def build() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return UNet(), (torch.randn(2, 1, 13, 13),)
