"""Pre-activation ResNet (He et al. 2016b)."""

from __future__ import annotations

from collections import OrderedDict
from functools import partial

import torch
from torch import nn

from isogon.nets.layers import Layers, NormKind, StemForm, Style, assemble, check_sizes, conv, residual_stages


class PreActivationBlock(nn.Module):
    """x + conv(ReLU(norm(conv(ReLU(norm(x)))))); a shortcut that changes the shape is a 1×1 convolution."""

    def __init__(self, layers: Layers, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.main = nn.Sequential(layers.norm_conv(inputs, outputs, stride=stride), layers.norm_conv(outputs, outputs))
        shortcut = OrderedDict[str, nn.Module]()
        if inputs != outputs or stride != 1:
            # Without it the shortcut's degree is one above that of the main branch (LA figures 11 and 14).
            if layers.scale_invariant:
                shortcut["norm"] = layers.norm(inputs)
            shortcut["conv"] = conv(inputs, outputs, 1, stride=stride)
        self.shortcut = nn.Sequential(shortcut)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.main(x) + self.shortcut(x)
        return y


def preresnet32(
    num_classes: int = 10,
    in_channels: int = 3,
    *,
    width: int = 16,
    scale_invariant: Style = False,
    norm: NormKind = "batch",
    stem: StemForm = "cifar",
    ghost_batch: int = 64,
) -> nn.Sequential:
    """Pre-activation ResNet-32 for CIFAR: three stages of five blocks (466,714 parameters for CIFAR-10).

    `width` is the number of channels of the first stage; LLA and LA do not give theirs, and 95 % on CIFAR-10
    suggests one wider than the published 16. Their network is `preresnet32(scale_invariant="plain")`. In the
    scale-invariant styles a downsampling shortcut has a norm before its convolution; in "affine" the stem is
    convolution, norm, ReLU, convolution, so that it emits degree 2 as the blocks do (LA figure 14). With
    `stem="imagenet"` (not a published network) its first convolution is 7×7 with stride 2 and max pooling
    follows it. Jointly invariant in both styles with every norm.
    """
    check_sizes(num_classes=num_classes, in_channels=in_channels, width=width)
    layers = Layers(scale_invariant, norm, ghost_batch)
    stages = residual_stages(partial(PreActivationBlock, layers), width, (5, 5, 5))
    return assemble(
        layers.preactivation_stem(stem, in_channels, width, second_degree=scale_invariant == "affine"),
        [*stages, layers.norm_relu(4 * width)],
        layers.head(4 * width, num_classes),
    )
