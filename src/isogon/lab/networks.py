"""The network of a config, drawn from its seed, and the map of its scale-invariant weights."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import nn

from isogon import nets
from isogon.errors import ArgumentError, IsogonError
from isogon.lab.config import Config
from isogon.lab.data import Dataset
from isogon.lab.order import generator
from isogon.symmetry import ScaleMap, check

# Samples in the batch that is traced; batch norm needs more than one.
_TRACED = 4


def build(config: Config, data: Dataset) -> nn.Module:
    """The network on the CPU in float32, its weights a function of `init_seed` alone."""
    make = _function(config.net)
    seed = config.seed if config.init_seed is None else config.init_seed
    # Constructors draw from torch's global generator, which the caller's program may rely on.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(generator(seed, "weights").initial_seed())
        try:
            model = make(data.num_classes, data.in_channels, **config.net_options)
        except TypeError as error:
            raise ArgumentError(
                "net_options", f"arguments of {config.net}", dict(config.net_options), f"{error}"
            ) from None
    if config.initialisation != "default":
        nets.initialise(model, config.initialisation, seed)  # type: ignore[arg-type]
    return model.train()


def scale_map_of(config: Config, data: Dataset) -> ScaleMap | None:
    """Which weights of the network are scale-invariant; None where that cannot be told. Kept for the next trial."""
    return _scale_map(config.net, json.dumps(dict(config.net_options), sort_keys=True), data.num_classes, _shape(data))


def draws_random_numbers(model: nn.Module) -> bool:
    """Whether the network has layers that draw in training mode."""
    return any(isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0 for module in model.modules())


def _shape(data: Dataset) -> tuple[int, ...]:
    return tuple(data.train_x.shape[1:])


@lru_cache(maxsize=32)
def _scale_map(net: str, options: str, num_classes: int, shape: tuple[int, ...]) -> ScaleMap | None:
    with torch.random.fork_rng(devices=[]):
        model = _function(net)(num_classes, shape[0], **json.loads(options)).train()
        inputs = torch.randn(_TRACED, *shape)
    try:
        return check(model, inputs)
    except IsogonError:
        return None


def _function(net: str) -> Callable[..., nn.Module]:
    module, colon, name = net.partition(":")
    if not colon:
        module, name = "isogon.nets", net
    try:
        found: Any = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError):
        known = ", ".join(
            one for one in nets.__all__ if one.islower() and one not in ("convert", "initialise", "make_norm")
        )
        raise ArgumentError(
            "net", f"a function of isogon.nets ({known}) or package.module:function", net, "write resnet18, say"
        ) from None
    return found  # type: ignore[no-any-return]
