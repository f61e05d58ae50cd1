"""DenseNet-BC (Huang et al. 2017)."""

from __future__ import annotations

import torch
from torch import nn

from isogon.nets.layers import Layers, NormKind, StemForm, Style, assemble, check_sizes

_LAYERS_PER_BLOCK = 16  # (100 − 4) / 6: three blocks of bottleneck layers with two convolutions each


class DenseLayer(nn.Module):
    """x and `growth` new channels: norm, ReLU, 1×1 convolution to 4 · `growth`, norm, ReLU, 3×3 convolution."""

    def __init__(self, layers: Layers, inputs: int, growth: int) -> None:
        super().__init__()
        self.new = nn.Sequential(layers.norm_conv(inputs, 4 * growth, 1), layers.norm_conv(4 * growth, growth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, self.new(x)], dim=1)


def densenet100(
    num_classes: int = 10,
    in_channels: int = 3,
    *,
    width: int = 12,
    scale_invariant: Style = False,
    norm: NormKind = "batch",
    stem: StemForm = "cifar",
    ghost_batch: int = 64,
) -> nn.Sequential:
    """DenseNet-BC of 100 layers, compression 0.5: 769,162 parameters for CIFAR-10.

    `width` is the growth rate, 12 as published and in Yun. With `stem="imagenet"` (not a published network)
    the first convolution is 7×7 with stride 2 and max pooling follows it.

    In the affine style the first block concatenates the stem's degree 1 with its layers' degree 2. Norms that
    treat each channel by itself (batch, ghost, instance) send both to degree 0, as Yun's network relies on;
    for those that mix channels (group, layer) the stem is convolution, norm, ReLU, convolution, which emits
    degree 2 as well. With that, jointly invariant in both styles with every norm.
    """
    check_sizes(num_classes=num_classes, in_channels=in_channels, width=width)
    layers = Layers(scale_invariant, norm, ghost_batch)
    channels = 2 * width
    first = layers.preactivation_stem(
        stem, in_channels, channels, second_degree=scale_invariant == "affine" and norm in ("group", "layer")
    )
    body: list[nn.Module] = []
    for block in range(3):
        if block:
            body += [layers.norm_conv(channels, channels // 2, 1), nn.AvgPool2d(2)]
            channels //= 2
        body.append(nn.Sequential(*(DenseLayer(layers, channels + i * width, width) for i in range(_LAYERS_PER_BLOCK))))
        channels += _LAYERS_PER_BLOCK * width
    body.append(layers.norm_relu(channels))
    return assemble(first, body, layers.head(channels, num_classes))
