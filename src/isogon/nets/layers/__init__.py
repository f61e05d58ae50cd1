"""What networks are made of: normalisations, their stems and stages, squeeze-and-excitation, inverted residuals."""

from __future__ import annotations

from isogon.nets.layers._initialisation import Scheme, initialise
from isogon.nets.layers._inverted_residual import InvertedResidual, Stage, inverted_network
from isogon.nets.layers._making import (
    Activation,
    Layers,
    StemForm,
    Style,
    assemble,
    check_sizes,
    conv,
    is_imagenet,
    residual_stages,
    scale_channels,
)
from isogon.nets.layers._norms import NORM_KINDS, NORMS, GhostBatchNorm1d, GhostBatchNorm2d, NormKind, make_norm
from isogon.nets.layers._squeeze_excitation import SqueezeExcitation

__all__ = [
    "NORMS",
    "NORM_KINDS",
    "Activation",
    "GhostBatchNorm1d",
    "GhostBatchNorm2d",
    "InvertedResidual",
    "Layers",
    "NormKind",
    "Scheme",
    "SqueezeExcitation",
    "Stage",
    "StemForm",
    "Style",
    "assemble",
    "check_sizes",
    "conv",
    "initialise",
    "inverted_network",
    "is_imagenet",
    "make_norm",
    "residual_stages",
    "scale_channels",
]
