"""LLA's small network for MNIST."""

from __future__ import annotations

from torch import nn

from isogon.nets.layers import Layers, NormKind, Style, assemble, check_sizes


def cnn4(
    num_classes: int = 10,
    in_channels: int = 3,
    *,
    width: int = 16,
    scale_invariant: Style = False,
    norm: NormKind = "batch",
    ghost_batch: int = 64,
) -> nn.Sequential:
    """The "simple 4-layer CNN" of LLA's MNIST experiments (figure 3): three 3×3 convolutions and a linear layer.

    The paper gives no details. Chosen here: channels `width`, 2 · `width`, 4 · `width` (24,000 parameters
    for digits), norm and ReLU after each convolution, max pooling by 2 after the first two, global average
    pooling. The paper's network is `cnn4(in_channels=1, scale_invariant="plain")`. Jointly invariant in both
    styles with every norm.
    """
    check_sizes(num_classes=num_classes, in_channels=in_channels, width=width)
    layers = Layers(scale_invariant, norm, ghost_batch)
    # Rounding up keeps the last row of an odd image, and a map of one pixel.
    body = [
        nn.MaxPool2d(2, ceil_mode=True),
        layers.conv_norm(width, 2 * width),
        nn.MaxPool2d(2, ceil_mode=True),
        layers.conv_norm(2 * width, 4 * width),
    ]
    return assemble(layers.conv_norm(in_channels, width), body, layers.head(4 * width, num_classes))
