"""EfficientNet (Tan and Le 2019)."""

from __future__ import annotations

from torch import nn

from isogon.nets.layers import Layers, NormKind, Stage, StemForm, Style, inverted_network, scale_channels

_STAGES = (
    Stage(1, 16, 1, 1, 3),
    Stage(6, 24, 2, 2, 3),
    Stage(6, 40, 2, 2, 5),
    Stage(6, 80, 3, 2, 3),
    Stage(6, 112, 3, 1, 5),
    Stage(6, 192, 4, 2, 5),
    Stage(6, 320, 1, 1, 3),
)


def efficientnet_b0(
    num_classes: int = 10,
    in_channels: int = 3,
    *,
    width: float = 1.0,
    scale_invariant: Style = False,
    norm: NormKind = "batch",
    stem: StemForm = "cifar",
    ghost_batch: int = 64,
    dropout: float = 0.2,
    drop_path: float = 0.2,
) -> nn.Sequential:
    """EfficientNet-B0: 5,288,548 parameters with 1000 classes.

    `width` multiplies the channels. The CIFAR form has stride 1 in the stem and in the first stage that would
    halve the image. `dropout` before the classifier and stochastic depth (`drop_path`) are the published
    ones; Yun does not give theirs.

    It cannot be jointly invariant: SiLU needs input of degree 0, which the affine style does not give it, and
    the squeeze-and-excitation gates are bounded functions of trainable layers in both styles. The styles
    change head and norms as elsewhere; in both, and with every norm, each convolution is followed by a norm
    and so invariant alone. The gates' linear layers are not, nor are γ and β where they are trained.
    """
    return inverted_network(
        Layers(scale_invariant, norm, ghost_batch),
        _STAGES,
        num_classes=num_classes,
        in_channels=in_channels,
        width=width,
        last=scale_channels(1280, width),
        stem=stem,
        activation=nn.SiLU,
        dropout=dropout,
        gated=True,
        drop_path=drop_path,
    )
