"""Normalisation layers, the papers' networks and their initialisations, GPT and ViT.

Each of the papers' networks is a function `name(num_classes, in_channels, *, width, scale_invariant, norm, stem,
ghost_batch)` that returns a Sequential of `stem`, `body` and `head`; the defaults are the CIFAR forms. `vit` begins
alike, `gpt` with the sizes of vocabulary and context.
"""

from __future__ import annotations

from isogon.nets._cnn import cnn4
from isogon.nets._conversion import Conversion, convert
from isogon.nets._densenet import densenet100
from isogon.nets._efficientnet import efficientnet_b0
from isogon.nets._gpt import Gpt, gpt
from isogon.nets._mobilenet import mobilenet_v2
from isogon.nets._preresnet import preresnet32
from isogon.nets._resnet import Residual, resnet18, resnet50
from isogon.nets._shufflenet import shufflenet_v2, shufflenet_v2_plus
from isogon.nets._vgg import vgg16
from isogon.nets._vit import Vit, vit
from isogon.nets.layers import GhostBatchNorm1d, GhostBatchNorm2d, Scheme, initialise, make_norm

__all__ = [
    "Conversion",
    "GhostBatchNorm1d",
    "GhostBatchNorm2d",
    "Gpt",
    "Residual",
    "Scheme",
    "Vit",
    "cnn4",
    "convert",
    "densenet100",
    "efficientnet_b0",
    "gpt",
    "initialise",
    "make_norm",
    "mobilenet_v2",
    "preresnet32",
    "resnet18",
    "resnet50",
    "shufflenet_v2",
    "shufflenet_v2_plus",
    "vgg16",
    "vit",
]
