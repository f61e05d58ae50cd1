"""VGG (Simonyan and Zisserman 2015) with normalisation."""

from __future__ import annotations

from torch import nn

from isogon.nets.layers import Layers, NormKind, Style, assemble, check_sizes

# Channels of the 13 convolutions in units of the width, stage by stage; a stage ends in max pooling.
_STAGES = ((1, 1), (2, 2), (4, 4, 4), (8, 8, 8), (8, 8, 8))


def vgg16(
    num_classes: int = 10,
    in_channels: int = 3,
    *,
    width: int = 64,
    scale_invariant: Style = False,
    norm: NormKind = "batch",
    ghost_batch: int = 64,
) -> nn.Sequential:
    """VGG-16 with a norm after each convolution and one linear head, as is usual on CIFAR (14,728,266 parameters).

    `width` is the number of channels of the first stage. The published convolutions have biases; they go in
    the scale-invariant styles (14,724,042 parameters), where they would have no effect before batch, ghost or
    instance norm and would break the invariance before group or layer norm (LA figure 15). Jointly invariant
    in both styles with every norm.
    """
    check_sizes(num_classes=num_classes, in_channels=in_channels, width=width)
    layers = Layers(scale_invariant, norm, ghost_batch)
    convolutions: list[nn.Module] = []
    channels = in_channels
    for stage in _STAGES:
        for multiple in stage:
            convolutions.append(layers.conv_norm(channels, multiple * width, bias=not scale_invariant))
            channels = multiple * width
        # Rounding up lets an image of 28 pixels through all five.
        convolutions.append(nn.MaxPool2d(2, ceil_mode=True))
    stem, *body = convolutions
    return assemble(stem, body, layers.head(channels, num_classes))
