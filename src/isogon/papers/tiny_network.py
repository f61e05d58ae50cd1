"""The network that stands in for all others at scale `tiny`, where a hundred runs must fit into a minute."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from torch import nn

from isogon.nets import cnn4

#: its name in a `Config`
TINY_NETWORK = f"{__name__}:coarse_cnn4"
#: pixels of a side that are averaged to one: most of a run's time would go into convolutions and pooling of 28×28
_COARSER = 4


def coarse_cnn4(num_classes: int, in_channels: int, **options: Any) -> nn.Sequential:
    """`nets.cnn4` on images averaged to a quarter of their height and width; `options` are its own.

    Averaging is linear and has no weights, so that degrees of homogeneity and names of layers are those of `cnn4`.
    """
    network = cnn4(num_classes, in_channels, **options)
    return nn.Sequential(OrderedDict(coarse=nn.AvgPool2d(_COARSER), **dict(network.named_children())))
