"""ShuffleNet-V2 (Ma et al. 2018) and its successor ShuffleNet-V2+."""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal

import torch
from torch import nn

from isogon.errors import check_choice
from isogon.nets.layers import (
    Activation,
    Layers,
    NormKind,
    SqueezeExcitation,
    StemForm,
    Style,
    assemble,
    check_sizes,
    is_imagenet,
    scale_channels,
)


class ShuffleUnit(nn.Module):
    """The outputs of `side` and of `main` as one tensor; without `side`, half of the channels pass unchanged.

    Then `main` sees the odd channels and the even ones pass: the paper's shuffle and split in one.
    """

    def __init__(self, main: nn.Module, side: nn.Module | None) -> None:
        super().__init__()
        self.main = main
        self.side = side

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.side is None:
            return torch.cat([x[:, ::2], self.main(x[:, 1::2])], dim=1)
        return torch.cat([self.side(x), self.main(x)], dim=1)


def _separable_conv(
    layers: Layers, inputs: int, outputs: int, kernel: int, stride: int, activation: Activation
) -> list[nn.Module]:
    """Depthwise convolution without an activation, then a 1×1 convolution with one."""
    return [
        layers.conv_norm(inputs, inputs, kernel, stride=stride, groups=inputs, activation=None),
        layers.conv_norm(inputs, outputs, 1, activation=activation),
    ]


def _unit(
    layers: Layers,
    inputs: int,
    outputs: int,
    *,
    side_outputs: int | None = None,
    stride: int = 1,
    kernel: int = 3,
    xception: bool = False,
    activation: Activation = nn.ReLU,
    gated: bool = False,
) -> ShuffleUnit:
    """A unit with a side branch, as the first of a stage is, when `side_outputs` is given."""
    branch_inputs = inputs // 2 if side_outputs is None else inputs
    hidden, branch_outputs = outputs // 2, outputs - (side_outputs or inputs // 2)
    if xception:
        main = [
            *_separable_conv(layers, branch_inputs, hidden, 3, stride, activation),
            *_separable_conv(layers, hidden, hidden, 3, 1, activation),
            *_separable_conv(layers, hidden, branch_outputs, 3, 1, activation),
        ]
    else:
        main = [
            layers.conv_norm(branch_inputs, hidden, 1, activation=activation),
            *_separable_conv(layers, hidden, branch_outputs, kernel, stride, activation),
        ]
    branch = nn.Sequential(*main)
    if gated:
        branch.add_module("gate", _gate(layers, branch_outputs))
    side = None
    if side_outputs is not None:
        side = nn.Sequential(*_separable_conv(layers, inputs, side_outputs, kernel, stride, activation))
    return ShuffleUnit(branch, side)


def _gate(layers: Layers, channels: int) -> SqueezeExcitation:
    squeezed = channels // 4
    inner = nn.Sequential(layers.norm(squeezed, dim=1), nn.ReLU())
    return SqueezeExcitation(channels, squeezed, inner=inner, gate=nn.Hardsigmoid(), bias=False)


def shufflenet_v2(
    num_classes: int = 10,
    in_channels: int = 3,
    *,
    width: float = 1.0,
    scale_invariant: Style = False,
    norm: NormKind = "batch",
    stem: StemForm = "cifar",
    ghost_batch: int = 64,
) -> nn.Sequential:
    """ShuffleNet-V2 1×: 2,278,604 parameters with 1000 classes.

    `width` multiplies the channels (the published 0.5×, 1.5× and 2× have channels of their own, not quite
    multiples). The CIFAR form has stride 1 and no max pooling in the stem. Jointly invariant in both styles
    with every norm.
    """
    check_sizes(num_classes=num_classes, in_channels=in_channels)
    layers = Layers(scale_invariant, norm, ghost_batch)
    inputs = scale_channels(24, width, 4)
    first = layers.stem(stem, in_channels, inputs, imagenet_kernel=3)
    body: list[nn.Module] = []
    for channels, depth in ((116, 4), (232, 8), (464, 4)):
        outputs = scale_channels(channels, width, 4)
        units = [_unit(layers, inputs, outputs, side_outputs=outputs // 2, stride=2)]
        units += [_unit(layers, outputs, outputs) for _ in range(depth - 1)]
        body.append(nn.Sequential(*units))
        inputs = outputs
    last = scale_channels(1024, width)
    body.append(layers.conv_norm(inputs, last, 1))
    return assemble(first, body, layers.head(last, num_classes))


_PLUS_CHANNELS = {
    "small": (36, 104, 208, 416),
    "medium": (48, 128, 256, 512),
    "large": (68, 168, 336, 672),
}
# The searched kernel of each unit, stage by stage; 0 stands for the unit of three separable convolutions.
_PLUS_KERNELS = ((3, 3, 0, 5), (5, 5, 3, 3), (7, 3, 7, 5, 5, 3, 7, 3), (7, 5, 0, 7))


def shufflenet_v2_plus(
    num_classes: int = 10,
    in_channels: int = 3,
    *,
    size: Literal["small", "medium", "large"] = "medium",
    width: float = 1.0,
    scale_invariant: Style = False,
    norm: NormKind = "batch",
    stem: StemForm = "cifar",
    ghost_batch: int = 64,
    dropout: float = 0.2,
) -> nn.Sequential:
    """ShuffleNet-V2+, which no paper describes; this follows its authors' release (megvii-model/ShuffleNet-Series).

    With 1000 classes small, medium and large have 5.1, 5.6 and 6.7 million parameters. SMD does not name
    the one in its figure 9. `width` multiplies the channels further. The CIFAR form has stride 1 in the stem
    and in the first stage.

    It cannot be jointly invariant: hard swish needs input of degree 0, which the affine style does not give
    it, and the squeeze-and-excitation gates are bounded functions of trainable layers in both styles. In the
    scale-invariant styles the last norm comes between the head's linear layer and its hard swish. In both,
    and with every norm, each convolution, that linear layer and the gates' `squeeze` are followed by a norm
    and so invariant alone. The gates' `expand` are not, nor are γ and β where they are trained.

    Instance norm does not suit it: hard swish is (x² + 3x)/6 for |x| < 3, whose mean over a normalised map is
    1/6 whatever the image, and that mean is all that the gates and the head see.
    """
    check_sizes(num_classes=num_classes, in_channels=in_channels)
    stage_channels = _PLUS_CHANNELS[check_choice("size", size, _PLUS_CHANNELS)]
    layers = Layers(scale_invariant, norm, ghost_batch)
    imagenet = is_imagenet(stem)
    first = inputs = scale_channels(16, width, 4)
    body: list[nn.Module] = []
    for stage, (channels, kernels) in enumerate(zip(stage_channels, _PLUS_KERNELS, strict=True)):
        outputs = scale_channels(channels, width, 4)
        units = []
        for position, kernel in enumerate(kernels):
            unit = _unit(
                layers,
                inputs,
                outputs,
                side_outputs=None if position else inputs,
                stride=1 if position or not (stage or imagenet) else 2,
                kernel=kernel,
                xception=kernel == 0,
                activation=nn.Hardswish if stage else nn.ReLU,
                gated=stage >= 2,
            )
            units.append(unit)
            inputs = outputs
        body.append(nn.Sequential(*units))
    last = scale_channels(1280, width)
    body.append(layers.conv_norm(inputs, last, 1, activation=nn.Hardswish))
    return assemble(
        layers.conv_norm(in_channels, first, stride=2 if imagenet else 1, activation=nn.Hardswish),
        body,
        _plus_head(layers, last, num_classes, dropout),
    )


def _plus_head(layers: Layers, features: int, num_classes: int, dropout: float) -> nn.Sequential:
    parts = OrderedDict[str, nn.Module](
        pool=nn.AdaptiveAvgPool2d(1),
        gate=_gate(layers, features),
        flatten=nn.Flatten(),
        mix=nn.Linear(features, features, bias=False),
    )
    if layers.scale_invariant:
        parts["norm"] = layers.last_norm(features)
    parts["activation"] = nn.Hardswish()
    parts["dropout"] = nn.Dropout(dropout)
    parts["classifier"] = layers.classifier(features, num_classes, bias=False)
    return nn.Sequential(parts)
