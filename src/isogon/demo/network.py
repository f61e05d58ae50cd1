"""The network of the demo: an ordinary one, as anybody would write it, and its scale-invariant copy."""

from __future__ import annotations

import copy
from collections import OrderedDict
from functools import lru_cache

import torch
from torch import nn

from isogon.nets import Conversion, convert

# The same statistics for every batch size, so that the batch size changes the steps and nothing else.
_GHOST_BATCH = 32


def ordinary(num_classes: int = 10, in_channels: int = 1, *, width: int = 16) -> nn.Sequential:
    """Three convolutions with batch norm and a classifier; patches of 4×4 pixels first, which is quick on a CPU."""
    layers = {
        "conv1": nn.Conv2d(in_channels, width, 4, stride=4),
        "norm1": nn.BatchNorm2d(width),
        "relu1": nn.ReLU(),
        "conv2": nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
        "norm2": nn.BatchNorm2d(2 * width),
        "relu2": nn.ReLU(),
        "conv3": nn.Conv2d(2 * width, 2 * width, 3, padding=1),
        "norm3": nn.BatchNorm2d(2 * width),
        "relu3": nn.ReLU(),
        "pool": nn.AdaptiveAvgPool2d(1),
        "flatten": nn.Flatten(),
        "classifier": nn.Linear(2 * width, num_classes),
    }
    return nn.Sequential(OrderedDict(layers))


def example_inputs(in_channels: int = 1) -> torch.Tensor:
    """A batch of the right shape; what is in it does not matter to a check."""
    return torch.randn(4, in_channels, 28, 28, generator=torch.Generator().manual_seed(0))


def conversion(model: nn.Module, in_channels: int = 1) -> Conversion:
    return convert(model, example_inputs(in_channels), ghost_batch=_GHOST_BATCH)


def converted(num_classes: int = 10, in_channels: int = 1, *, width: int = 16) -> nn.Module:
    """What the demo trains; a `lab.Config` names it as `isogon.demo.network:converted`.

    The same as to convert a fresh `ordinary`, but that takes half a second, so it is done once and the fresh weights
    are put in place of those that the conversion left as they were.
    """
    template, left = _template(num_classes, in_channels, width)
    fresh = ordinary(num_classes, in_channels, width=width).state_dict()
    model = copy.deepcopy(template)
    model.load_state_dict({name: fresh[name] for name in left}, strict=False)
    return model


@lru_cache
def _template(num_classes: int, in_channels: int, width: int) -> tuple[nn.Module, list[str]]:
    """A converted network and the names of what the conversion did not change."""
    with torch.random.fork_rng(devices=[]):  # the random state is the caller's
        before = ordinary(num_classes, in_channels, width=width)
        model = conversion(before, in_channels).model
    after = model.state_dict()
    return model, [name for name, value in before.state_dict().items() if torch.equal(value, after[name])]
