"""MobileNet-V2 (Sandler et al. 2018)."""

from __future__ import annotations

from torch import nn

from isogon.nets.layers import Layers, NormKind, Stage, StemForm, Style, inverted_network, scale_channels

_STAGES = (
    Stage(1, 16, 1, 1),
    Stage(6, 24, 2, 2),
    Stage(6, 32, 3, 2),
    Stage(6, 64, 4, 2),
    Stage(6, 96, 3, 1),
    Stage(6, 160, 3, 2),
    Stage(6, 320, 1, 1),
)


def mobilenet_v2(
    num_classes: int = 10,
    in_channels: int = 3,
    *,
    width: float = 1.0,
    scale_invariant: Style = False,
    norm: NormKind = "batch",
    stem: StemForm = "cifar",
    ghost_batch: int = 64,
    dropout: float = 0.2,
) -> nn.Sequential:
    """MobileNet-V2: 3,504,872 parameters with 1000 classes.

    `width` multiplies the channels (those before the classifier only when it is above 1). The CIFAR form has
    stride 1 in the stem and in the first stage that would halve the image. `dropout` is that before the
    classifier.

    ReLU6 needs input of degree 0. The plain style has that and keeps it; in the affine style its input has
    degree 1, so ReLU takes its place. With that, jointly invariant in both styles with every norm.
    """
    return inverted_network(
        Layers(scale_invariant, norm, ghost_batch),
        _STAGES,
        num_classes=num_classes,
        in_channels=in_channels,
        width=width,
        last=scale_channels(1280, max(1.0, width)),
        stem=stem,
        activation=nn.ReLU if scale_invariant == "affine" else nn.ReLU6,
        dropout=dropout,
    )
