"""The network of a config, sampled from its seed, and the map of its scale-invariant weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from functools import lru_cache
from typing import TypeVar

import torch
from torch import nn

from isogon import named, nets
from isogon.errors import ArgumentError, IsogonError, first_line
from isogon.lab.data import Dataset, check_name, is_text, load
from isogon.lab.run._augment import find_augmentation
from isogon.lab.run._batch_order import generator
from isogon.lab.run._config import TRANSFORMERS, Config
from isogon.symmetry import ScaleMap, Symmetries, check, symmetries

T = TypeVar("T")
# Samples in the batch that is traced; batch norm needs more than one.
_TRACED = 4


def build(config: Config, data: Dataset) -> nn.Module:
    """The network on the CPU in float32, its weights a function of `init_seed` alone."""
    make = _function(config.net)
    seed = config.seed if config.init_seed is None else config.init_seed
    # Constructors use torch's global generator, which the caller's program may rely on.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(generator(seed, "weights").initial_seed())
        try:
            model = make(data.num_classes, data.in_channels, **config.net_options)
        except TypeError as error:
            options = dict(config.net_options)
            raise ArgumentError("net_options", f"arguments of {config.net}", options, f"{error}") from None
        except IsogonError:
            raise
        except Exception as error:  # the user's own network may raise anything, and a large one the memory's error
            reason = f"{type(error).__name__}: {first_line(error)}"
            raise IsogonError(
                f"net {config.net} cannot be made ({reason}): change net_options, or the network."
            ) from error
    if config.initialisation != "default":
        nets.initialise(model, config.initialisation, seed)  # type: ignore[arg-type]
    return model.train()


def try_out(config: Config) -> None:
    """See, before anything is trained, that the data of `config` are there and that its network takes them.

    Any error of the network becomes one sentence.
    """
    data = load(config.data, config.data_root, config.recipe.samples, config.subset_seed)
    try:
        _draws(build(config, data), _zeros(shape_of(config, data)))
    except IsogonError:
        raise
    except Exception as error:  # the user's own network may raise anything
        what = f"net {config.net} does not take the {'text' if is_text(config.data) else 'images'} of {config.data}"
        raise IsogonError(f"{what} ({type(error).__name__}: {first_line(error)}): change the network.") from error


def check_names(config: Config) -> None:
    """Refuse an unknown network or data set, without loading either's data."""
    _function(config.net)
    check_name(config.data)


def scale_map_of(config: Config, data: Dataset) -> ScaleMap | None:
    """Which weights of the network are scale-invariant; None where that is unknown. Kept for the next training."""
    return _answer(check, *_question(config, data))


def symmetries_of(config: Config, data: Dataset) -> Symmetries | None:
    """Which weights of a transformer scale together, such as the residual stream; None for other networks."""
    return _answer(symmetries, *_question(config, data)) if config.net in TRANSFORMERS else None


def is_random(config: Config, data: Dataset) -> bool:
    """Whether the network is random in training mode, for example by dropout. Kept for the next training."""
    return bool(_answer(_draws, *_question(config, data)))


def _question(config: Config, data: Dataset) -> tuple[str, str, int, tuple[int, ...]]:
    options = json.dumps(dict(config.net_options), sort_keys=True)
    return config.net, options, data.num_classes, shape_of(config, data)


@torch.no_grad()
def _draws(model: nn.Module, inputs: torch.Tensor) -> bool:
    """Whether `model`, on the CPU, draws random numbers: tried on a copy, as a function may hide dropout."""
    with torch.random.fork_rng(devices=[]):
        before = torch.get_rng_state()
        deepcopy(model)(inputs)
        return not torch.equal(before, torch.get_rng_state())


def shape_of(config: Config, data: Dataset) -> tuple[int, ...]:
    """Of a sample as the network sees it: an image, augmented, or the bytes of a text."""
    if data.is_text:
        return (data.in_channels,)
    augmentation = find_augmentation(config.augmentation)
    image = augmentation.apply(data.train_x[:1].cpu(), augmentation.draw(1, generator(0, "shape")))
    return tuple(image.shape[1:])


@lru_cache(maxsize=32)
def _answer(ask: Callable[..., T], net: str, options: str, num_classes: int, shape: tuple[int, ...]) -> T | None:
    """What `ask`, called with the network and an input, answers; None where it cannot follow the network."""
    with torch.random.fork_rng(devices=[]):
        model = _function(net)(num_classes, shape[0], **json.loads(options)).train()
        inputs = torch.randn(_TRACED, *shape) if len(shape) == 3 else torch.randint(num_classes, (_TRACED, *shape))
    try:
        return ask(model, inputs)
    except IsogonError:
        return None


def _zeros(shape: tuple[int, ...]) -> torch.Tensor:
    """A batch of samples of `shape`: images, or bytes."""
    return torch.zeros(_TRACED, *shape, dtype=torch.float32 if len(shape) == 3 else torch.int64)


def _function(net: str) -> Callable[..., nn.Module]:
    make = named.find("net", net) if ":" in net else getattr(nets, net, None)
    if not callable(make):
        raise _unknown(net, "it is no function" if hasattr(nets, net) or ":" in net else "for example resnet18")
    return make  # type: ignore[no-any-return]


def _unknown(net: str, cure: str) -> ArgumentError:
    known = ", ".join(
        name for name in nets.__all__ if name.islower() and name not in ("convert", "initialise", "make_norm")
    )
    return ArgumentError("net", f"a function of isogon.nets ({known}) or file.py:function", net, cure)
