"""ResNet (He et al. 2016a)."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from isogon.nets.layers import Layers, NormKind, StemForm, Style, assemble, check_sizes, residual_stages


class Residual(nn.Module):
    """ReLU(main(x) + shortcut(x)); a shortcut that changes the shape is a 1×1 convolution and a norm."""

    def __init__(self, layers: Layers, main: nn.Module, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.main = main
        # The norm brings the convolution's degree back to that of the main branch (LA figures 10 and 13).
        self.shortcut: nn.Module = (
            nn.Identity()
            if inputs == outputs and stride == 1
            else layers.conv_norm(inputs, outputs, 1, stride=stride, activation=None)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.main(x) + self.shortcut(x))


def _basic_block(layers: Layers, inputs: int, channels: int, stride: int) -> Residual:
    main = nn.Sequential(
        layers.conv_norm(inputs, channels, stride=stride), layers.conv_norm(channels, channels, activation=None)
    )
    return Residual(layers, main, inputs, channels, stride)


def _bottleneck_block(layers: Layers, inputs: int, channels: int, stride: int) -> Residual:
    main = nn.Sequential(
        layers.conv_norm(inputs, channels, 1),
        layers.conv_norm(channels, channels, stride=stride),
        layers.conv_norm(channels, 4 * channels, 1, activation=None),
    )
    return Residual(layers, main, inputs, 4 * channels, stride)


def resnet18(
    num_classes: int = 10,
    in_channels: int = 3,
    *,
    width: int = 64,
    scale_invariant: Style = False,
    norm: NormKind = "batch",
    stem: StemForm = "cifar",
    ghost_batch: int = 64,
) -> nn.Sequential:
    """ResNet-18: 11,173,962 parameters for CIFAR-10, 11,689,512 with `stem="imagenet"` and 1000 classes.

    `width` is the number of channels of the first stage. Yun's network is `resnet18(scale_invariant="affine",
    norm="ghost")`. The shortcuts' norms are those of the published network, so the styles change nothing but
    the head (and freeze γ and β in "plain"). Jointly invariant in both styles with every norm.
    """
    layers = Layers(scale_invariant, norm, ghost_batch)
    return _resnet(layers, num_classes, in_channels, width, stem, depths=(2, 2, 2, 2), bottleneck=False)


def resnet50(
    num_classes: int = 10,
    in_channels: int = 3,
    *,
    width: int = 64,
    scale_invariant: Style = False,
    norm: NormKind = "batch",
    stem: StemForm = "cifar",
    ghost_batch: int = 64,
) -> nn.Sequential:
    """ResNet-50: 25,557,032 parameters with `stem="imagenet"` and 1000 classes.

    As `resnet18`, of bottleneck blocks; the stride is that of their 3×3 convolution, as is usual by now,
    where He et al. had it in the first 1×1. Jointly invariant in both styles with every norm.
    """
    layers = Layers(scale_invariant, norm, ghost_batch)
    return _resnet(layers, num_classes, in_channels, width, stem, depths=(3, 4, 6, 3), bottleneck=True)


def _resnet(
    layers: Layers,
    num_classes: int,
    in_channels: int,
    width: int,
    stem: StemForm,
    *,
    depths: tuple[int, ...],
    bottleneck: bool,
) -> nn.Sequential:
    check_sizes(num_classes=num_classes, in_channels=in_channels, width=width)
    block, expansion = (_bottleneck_block, 4) if bottleneck else (_basic_block, 1)
    body = residual_stages(partial(block, layers), width, depths, expansion)
    features = expansion * width * 2 ** (len(depths) - 1)
    return assemble(layers.stem(stem, in_channels, width), body, layers.head(features, num_classes))
