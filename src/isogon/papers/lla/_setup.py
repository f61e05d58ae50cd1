"""What the experiments of Li, Lyu and Arora have in common: networks and data at each scale."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from isogon import Recipe
from isogon.lab import Config
from isogon.papers.reproduction import Label, Planned, Scale
from isogon.papers.tiny_network import TINY_NETWORK
from isogon.schedules import phases_name

#: start of the CIFAR experiments: learning rate and weight decay (table 1)
LR, WEIGHT_DECAY = 0.4, 5e-4

#: what the paper leaves open in all of them
CHOICES = (
    "Widths are not printed: PreResNet32 has 64 channels in its first stage at paper scale, which its accuracies "
    "suggest, and the published 16 at small scale; VGG16 has 64 and 32.",
    "Augmentation is padding by 4, cropping and mirroring; the last batch of an epoch is dropped unless full.",
    "Small scale: PreResNet32 and VGG16 in bfloat16 with fewer epochs. "
    "Tiny scale: cnn4 with 2 channels, some hundred images of fashion-mini averaged to 7×7 pixels, batches of 20 and "
    "more weight decay.",
)
_WIDTHS = {"preresnet32": {"small": 16, "paper": 64}, "vgg16": {"small": 32, "paper": 64}}
#: more weight decay at tiny scale, so that an epoch of some 12 steps forgets as much as several of 390
TINY_DECAY = 80.0


def config(
    scale: Scale,
    *,
    lr: float,
    weight_decay: float,
    epochs: int,
    schedule: str = "constant",
    momentum: float = 0.0,
    net: str = "preresnet32",
    data: str = "cifar10",
    seed: int = 0,
    samples: int = 50_000,
    tiny_samples: int = 240,
    full_batch: bool = False,
    **changes: Any,
) -> Config:
    """A training on CIFAR with a scale-invariant network (last layer, γ and β fixed), or its stand-in at tiny scale.

    `lr`, `weight_decay` and `epochs` are taken as they are at every scale.
    """
    if scale == "tiny":
        net, options, data, samples = TINY_NETWORK, {"width": 2}, "fashion-mini", tiny_samples
        changes = {"augmentation": "none", "save_weights": False, "monitor_every": 4, **changes}
    else:
        options = {"width": _WIDTHS[net][scale]}
        precision = "bfloat16" if scale == "small" else "float32"
        changes = {"precision": precision, "monitor_every": 100, "save_weights": False, **changes}
    return Config(
        recipe=Recipe(
            lr=lr,
            weight_decay=weight_decay,
            momentum=momentum,
            batch_size=samples if full_batch else 20 if scale == "tiny" else 128,
            samples=samples,
            epochs=epochs,
        ),
        net=net,
        net_options={**options, "scale_invariant": "plain", "norm": "batch"},
        data=data,
        schedule=schedule,
        seed=seed,
        **changes,
    )


def scheduled_config(scale: Scale, parts: Sequence[tuple[float, float, float]], *, epochs: int, **more: Any) -> Config:
    """A training whose learning rate and weight decay are those of `parts` (epoch, η, λ); the recipe has the first."""
    _, lr, weight_decay = parts[0]
    return config(scale, lr=lr, weight_decay=weight_decay, epochs=epochs, schedule=phases_name(parts), **more)


def decay_of(scale: Scale) -> float:
    """The weight decay that stands for 5e-4."""
    return WEIGHT_DECAY * TINY_DECAY if scale == "tiny" else WEIGHT_DECAY


def planned_runs(runs: Iterable[tuple[Config, dict[str, Label]]]) -> list[Planned]:
    return [Planned(config=config, labels=labels) for config, labels in runs]
