"""Networks, images and recipes of Wan et al.'s trainings, at each scale."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from isogon.lab import Config
from isogon.papers import _imagenet as imagenet
from isogon.papers.la import TINY as _LA_TINY
from isogon.papers.reproduction import Scale
from isogon.recipe import Recipe

#: the two runs under a multi-stage schedule
STANDARD, RESCALED = "Standard", "Rescale"
#: Li and Arora's network at this scale, on pictures read as ImageNet's are; only the last accuracy counts
TINY = {name: value for name, value in _LA_TINY.items() if name != "monitor_every"}
TINY |= {"data": imagenet.DRAWN, "test_every": 0}
CIFAR: dict[str, Any] = {
    "net": "resnet18",
    "net_options": {"scale_invariant": "plain"},
    "data": "cifar10",
    "precision": "bfloat16",
}
IMAGENET: dict[str, Any] = {
    "net": "resnet50",
    "net_options": {"stem": "imagenet"},
    "data": imagenet.DATA,
    "augmentation": imagenet.AUGMENTATION,
}
_NONE: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class StagedSetup:
    """One scale: a recipe, the epochs at which the rate drops, how many seeds."""

    recipe: Recipe
    drops: tuple[int, ...]
    seeds: int
    options: Mapping[str, Any]
    monitor_every: int = 50

    @property
    def step(self) -> str:
        """The lab's name of the multi-stage schedule."""
        return "_".join(["lr", *map(str, self.drops)])

    def config(
        self, schedule: str, seed: int, *, options: Mapping[str, Any] = _NONE, recipe: Mapping[str, Any] = _NONE
    ) -> Config:
        """The run under `schedule`, with some `options` and fields of the `recipe` changed."""
        return Config(
            recipe=replace(self.recipe, **recipe),
            schedule=schedule,
            seed=seed,
            monitor_every=self.monitor_every,
            save_weights=False,
            **{**self.options, **options},
        )


SETUPS: dict[Scale, StagedSetup] = {
    # 400 steps: the law's mean gradient is that of the last 200, which must not reach back to the start.
    "tiny": StagedSetup(
        Recipe(lr=0.1, weight_decay=0.02, batch_size=10, samples=400, epochs=10), (4, 7), 2, TINY, monitor_every=2
    ),
    "small": StagedSetup(
        Recipe(lr=0.1, weight_decay=5e-4, batch_size=128, samples=50_000, epochs=60), (20, 40, 53), 2, CIFAR
    ),
    "paper": StagedSetup(
        Recipe(lr=0.1, weight_decay=1e-4, batch_size=256, samples=imagenet.SAMPLES, epochs=90),
        (30, 60, 80),
        1,
        IMAGENET,
    ),
}
#: figure 2: a fixed rate of 0.2
FIXED_RATE: dict[Scale, StagedSetup] = {
    "tiny": SETUPS["tiny"],
    "small": replace(SETUPS["small"], recipe=replace(SETUPS["small"].recipe, lr=0.2, epochs=40), drops=()),
    "paper": replace(SETUPS["paper"], recipe=replace(SETUPS["paper"].recipe, lr=0.2, epochs=30), drops=()),
}
#: figure 9: panel → what its network changes
MOBILE: dict[Scale, dict[str, Mapping[str, Any]]] = {
    "tiny": {"a": {}, "b": {"net_options": {"width": 4}}},
    "small": {
        "a": {"net": "mobilenet_v2", "net_options": {}},
        "b": {"net": "shufflenet_v2_plus", "net_options": {}},
    },
    "paper": {
        "a": {"net": "mobilenet_v2", "net_options": {"stem": "imagenet"}},
        "b": {"net": "shufflenet_v2_plus", "net_options": {"stem": "imagenet"}},
    },
}
MOBILE_RECIPES: dict[Scale, Mapping[str, Any]] = {
    "tiny": {},
    "small": {"lr": 0.5, "weight_decay": 4e-5},
    "paper": {"lr": 0.5, "weight_decay": 4e-5, "batch_size": 1024},
}
