"""What the demo trains: which runs, on how many images, with which recipes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from isogon.lab import Config
from isogon.recipe import Recipe

#: tuning factors of the search are this much apart, and so are the neighbours that are tried on the full set
APART = 4.0


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much the demo trains: a search on `fraction` images of fashion-mini, then runs on `full`.

    `factors` are searched with `seeds` seeds each. The full set is tried with the best, with its neighbours and, once
    each, with two that are `far` off. `workers` are processes, as many as there are cores where None; `note` is what a
    reader must know of a size that shows less.
    """

    full: int = 8_000
    between: int = 2_000
    fraction: int = 1_000
    epochs: int = 24
    factors: Sequence[float] = tuple(APART**power for power in range(-3, 2))
    seeds: int = 2
    far: bool = True
    workers: int | None = None
    note: str = ""

    @property
    def steady_epochs(self) -> range:
        """The last third of the epochs before the learning rate first drops, at half of the run."""
        return range(self.epochs // 2 - max(1, self.epochs // 6), self.epochs // 2)


WHOLE = Size()
#: a glimpse: everything happens, nothing is learnt from the numbers
GLIMPSE = Size(
    full=640,
    between=480,
    fraction=320,
    epochs=4,
    factors=(1 / 4, 1.0),
    far=False,
    workers=1,  # starting a process takes longer than the runs
    note="A glimpse: the runs are too short for their numbers to mean anything. isogon demo takes a few minutes.",
)


def recipe_with(factor: float, size: Size) -> Recipe:
    """The recipe on the fraction whose tuning factor is `factor`; the weight decay is set for it."""
    # With so large a rate the weights grow long at first, and too small a weight decay does not bring them back in
    # these few epochs; with a small rate a too small tuning factor would cost next to nothing.
    unit = Recipe(lr=2.0, weight_decay=1.0, momentum=0.9, batch_size=32, samples=size.fraction, epochs=size.epochs)
    return replace(unit, weight_decay=factor / unit.tuning_factor)


def search_grid(size: Size) -> list[Config]:
    """Every tuning factor with every seed, on the fraction."""
    return [config_of(recipe_with(factor, size), seed) for factor in size.factors for seed in range(size.seeds)]


def on_the_full_set(recipe: Recipe, size: Size) -> Recipe:
    """`recipe` with the same tuning factor on all images, in larger batches, as one would there."""
    return recipe.transfer(samples=size.full, batch_size=4 * recipe.batch_size).recipe


def full_runs(best: Recipe, size: Size) -> list[Config]:
    """The transferred recipe, its neighbours and what is far off, on the full set."""
    near = [(seed, times) for seed in range(size.seeds) for times in (1.0, 1 / APART, APART)]
    far = [(0, times) for times in (1 / APART**2, APART**2)] if size.far else []
    recipe = on_the_full_set(best, size)
    return [config_of(replace(recipe, weight_decay=recipe.weight_decay * times), seed) for seed, times in near + far]


def relatives(best: Recipe, size: Size) -> list[Config]:
    """Runs that share with `best` its tuning factor and little else."""
    changes: tuple[dict[str, Any], ...] = (
        {"batch_size": 16, "lr": best.lr / 4},
        {"samples": size.between, "batch_size": 64, "lr": best.lr / 2},
        {"samples": size.between, "momentum": 0.8},
    )
    return [config_of(best.transfer(**change).recipe, 0) for change in changes]


def config_of(recipe: Recipe, seed: int) -> Config:
    return Config(
        recipe=recipe,
        net="isogon.demo.network:converted",
        net_options={},
        data="fashion-mini",
        augmentation="none",
        schedule="step",
        seed=seed,
        # Angles per epoch need the ends of epochs, which are always measured; this is for the prediction of the norm.
        monitor_every=50,
        save_weights=False,
    )
