"""Inverted residual blocks, of which MobileNet-V2 and EfficientNet consist."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional

from isogon.nets.layers._making import Activation, Layers, StemForm, assemble, check_sizes, is_imagenet, scale_channels
from isogon.nets.layers._squeeze_excitation import SqueezeExcitation


class Stage(NamedTuple):
    """A row of the papers' tables; the first block has the stride."""

    expansion: int
    channels: int
    depth: int
    stride: int
    kernel: int = 3


class InvertedResidual(nn.Module):
    """1×1 convolution that expands, depthwise convolution, gate if asked, 1×1 convolution that projects, no activation.

    Added to the input where the shape allows; then `drop_path` is the chance that a sample skips the block in
    training (stochastic depth, Huang et al. 2016).
    """

    def __init__(
        self,
        layers: Layers,
        inputs: int,
        outputs: int,
        *,
        stride: int,
        expansion: int,
        kernel: int,
        activation: Activation,
        gated: bool,
        drop_path: float,
    ) -> None:
        super().__init__()
        hidden = expansion * inputs
        main = OrderedDict[str, nn.Module]()
        if expansion > 1:
            main["expand"] = layers.conv_norm(inputs, hidden, 1, activation=activation)
        main["depthwise"] = layers.conv_norm(
            hidden, hidden, kernel, stride=stride, groups=hidden, activation=activation
        )
        if gated:
            main["gate"] = SqueezeExcitation(hidden, inputs // 4, inner=activation(), gate=nn.Sigmoid(), bias=True)
        main["project"] = layers.conv_norm(hidden, outputs, 1, activation=None)
        self.main = nn.Sequential(main)
        self.adds = stride == 1 and inputs == outputs
        self.drop_path = drop_path

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.main(x)
        if not self.adds:
            return y
        if self.training and self.drop_path:
            y = y * functional.dropout(y.new_ones(y.shape[0], 1, 1, 1), self.drop_path)
        return x + y


def inverted_network(
    layers: Layers,
    stages: Sequence[Stage],
    *,
    num_classes: int,
    in_channels: int,
    width: float,
    last: int,
    stem: StemForm,
    activation: Activation,
    dropout: float,
    gated: bool = False,
    drop_path: float = 0.0,
) -> nn.Sequential:
    """Stem of 32 channels, stages, 1×1 convolution to `last` channels, head.

    The CIFAR form leaves out the first two halvings of the image: stride 1 in the stem and in the first stage
    that has stride 2. The chance of skipping a block grows evenly from 0 towards `drop_path`.
    """
    check_sizes(num_classes=num_classes, in_channels=in_channels)
    imagenet = is_imagenet(stem)
    first_halving = next(index for index, stage in enumerate(stages) if stage.stride == 2)
    first = inputs = scale_channels(32, width)
    total = sum(stage.depth for stage in stages)
    body: list[nn.Module] = []
    for index, (expansion, channels, depth, stride, kernel) in enumerate(stages):
        outputs = scale_channels(channels, width)
        for position in range(depth):
            block = InvertedResidual(
                layers,
                inputs,
                outputs,
                stride=1 if position or (index == first_halving and not imagenet) else stride,
                expansion=expansion,
                kernel=kernel,
                activation=activation,
                gated=gated,
                drop_path=drop_path * len(body) / total,
            )
            body.append(block)
            inputs = outputs
    body.append(layers.conv_norm(inputs, last, 1, activation=activation))
    return assemble(
        layers.conv_norm(in_channels, first, stride=2 if imagenet else 1, activation=activation),
        body,
        layers.head(last, num_classes, dropout),
    )
