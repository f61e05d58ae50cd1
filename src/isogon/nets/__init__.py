"""Normalisation layers, the papers' networks and their initialisations.

Each network is a function `name(num_classes, in_channels, *, width, scale_invariant, norm, stem,
ghost_batch)` that returns a Sequential of `stem`, `body` and `head`; the defaults are the CIFAR forms.
"""

from __future__ import annotations

from isogon.nets.cnn import cnn4
from isogon.nets.conversion import Conversion, convert
from isogon.nets.densenet import densenet100
from isogon.nets.efficientnet import efficientnet_b0
from isogon.nets.initialisation import initialise
from isogon.nets.mobilenet import mobilenet_v2
from isogon.nets.norms import GhostBatchNorm1d, GhostBatchNorm2d, make_norm
from isogon.nets.preresnet import preresnet32
from isogon.nets.resnet import resnet18, resnet50
from isogon.nets.shufflenet import shufflenet_v2, shufflenet_v2_plus
from isogon.nets.vgg import vgg16

__all__ = [
    "Conversion",
    "GhostBatchNorm1d",
    "GhostBatchNorm2d",
    "cnn4",
    "convert",
    "densenet100",
    "efficientnet_b0",
    "initialise",
    "make_norm",
    "mobilenet_v2",
    "preresnet32",
    "resnet18",
    "resnet50",
    "shufflenet_v2",
    "shufflenet_v2_plus",
    "vgg16",
]
