"""What Yun et al. train: grids of learning rate, weight decay and batch size over data sizes, at three scales.

Every grid starts from base rates in its bottom row. Row k has 2^k times the base's ηλ, by the learning rate in panel
(a), by the weight decay in (b), by both in (c): the tuning factor F = Nηλ/(B(1−μ)) doubles from row to row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from isogon import Recipe
from isogon.lab import NET_OPTIONS, Config
from isogon.papers._printed import yun_table
from isogon.papers.reproduction import Label, Options, Planned, Scale
from isogon.papers.tiny_network import TINY_NETWORK

Network = Literal["invariant", "plain", "densenet", "tiny-imagenet"]
Varied = Literal["samples", "batch_size"]
PANELS = ("a", "b", "c")
#: what one row up multiplies η and λ by, in each panel
_UP = {"a": (2.0, 1.0), "b": (1.0, 2.0), "c": (math.sqrt(2), math.sqrt(2))}
#: the stated tuning factors; that of `tiny` is among the best of a few short runs at both its data sizes
STATED, STATED_TINY_IMAGENET, STATED_TINY = 10 / 128, 5 / 32, 0.32
_TINY_NET = {"width": 4, "norm": "ghost", "ghost_batch": 25}
_PRINTED: dict[Network, dict[str, Any]] = {
    "invariant": {"net": "resnet18", "net_options": NET_OPTIONS, "data": "cifar10"},
    "plain": {"net": "resnet18", "net_options": {}, "data": "cifar10"},
    "densenet": {"net": "densenet100", "net_options": NET_OPTIONS, "data": "cifar100"},
    "tiny-imagenet": {"net": "resnet18", "net_options": NET_OPTIONS, "data": "tiny-imagenet"},
}


def base_run(
    scale: Scale,
    network: Network = "invariant",
    *,
    momentum: float = 0.9,
    schedule: str = "step",
    epochs: int | None = None,
) -> Config:
    """The run of the bottom row, for `epochs` if not the usual number; grids set their own N and B.

    Without momentum the base learning rate is ten times as large, so the tuning factor is the same.
    """
    lr = 0.1 if momentum else 1.0
    if scale == "tiny":
        recipe = Recipe(lr=lr, weight_decay=0.02, momentum=momentum, batch_size=50, samples=400, epochs=3)
        options = {**_TINY_NET, "scale_invariant": False if network == "plain" else "affine"}
        tiny: dict[str, Any] = {
            "net": TINY_NETWORK,
            "net_options": options,
            "data": "fashion-mini",
            "augmentation": "none",
        }
        # Measuring so little training takes as long as the training. No figure shows runs without momentum, nor the
        # test accuracy of any epoch but the last.
        every = 100 if momentum else 0
        return Config(recipe=recipe, **tiny, schedule=schedule, monitor_every=every, test_every=0, save_weights=False)
    printed_epochs = 120 if network == "tiny-imagenet" else 300
    recipe = Recipe(
        lr=lr, weight_decay=1e-4, momentum=momentum, batch_size=128, samples=50_000, epochs=epochs or printed_epochs
    )
    return Config(
        recipe=recipe,
        **_PRINTED[network],
        schedule=schedule,
        precision="bfloat16",
        monitor_every=100,
        test_every=25,
        save_weights=False,
    )


def config_at(base: Config, panel: str, octave: int, *, samples: int, batch_size: int) -> Config:
    """The run of row `octave`; rates have four digits, as printed.

    >>> run = config_at(base_run("paper"), "c", 5, samples=3125, batch_size=128)
    >>> run.recipe.lr, run.recipe.weight_decay, round(run.recipe.tuning_factor * 128, 2)
    (0.5657, 0.0005657, 10.0)
    """
    lr, weight_decay = (
        float(f"{rate * up**octave:.4g}")
        for rate, up in zip((base.recipe.lr, base.recipe.weight_decay), _UP[panel], strict=True)
    )
    recipe = replace(base.recipe, lr=lr, weight_decay=weight_decay, samples=samples, batch_size=batch_size)
    return replace(base, recipe=recipe)


def factor_of(config: Config, stated: float) -> float:
    """The run's tuning factor over the stated one, a power of 2 on these grids once the rates' rounding is undone."""
    return 2.0 ** round(math.log2(config.recipe.tuning_factor / stated))


@dataclass(frozen=True)
class GridPlace:
    """A cell of a table and its run (of seed 0); rows are counted from the bottom by `octave`."""

    panel: str
    row: str
    column: str
    octave: int
    config: Config


@dataclass(frozen=True)
class RateGrid:
    """Rates against data sizes or batch sizes: `columns` are (N, B)."""

    base: Config
    columns: tuple[tuple[int, int], ...]
    varied: Varied
    octaves: range = range(7)
    panels: tuple[str, ...] = PANELS
    stated: float = STATED
    seeds: int = 3

    def places(self) -> Iterator[GridPlace]:
        for panel in self.panels:
            for octave in reversed(self.octaves):
                for samples, batch_size in self.columns:
                    config = config_at(self.base, panel, octave, samples=samples, batch_size=batch_size)
                    row = f"{config.recipe.lr:g} / {config.recipe.weight_decay:g}"
                    column = str(getattr(config.recipe, self.varied))
                    yield GridPlace(panel, row, column, octave, config)


@dataclass(frozen=True)
class BatchGrid:
    """Batch sizes against data sizes at fixed rates (table 5)."""

    base: Config
    batch_sizes: tuple[int, ...]
    samples: tuple[int, ...]
    stated: float = STATED
    seeds: int = 3

    def places(self) -> Iterator[GridPlace]:
        for row, batch_size in enumerate(self.batch_sizes):
            for samples in self.samples:
                recipe = replace(self.base.recipe, samples=samples, batch_size=batch_size)
                place = str(batch_size), str(samples), -row
                yield GridPlace("a", *place, replace(self.base, recipe=recipe))


Grid = RateGrid | BatchGrid


def plan_table(number: int, grid: Grid, options: Options) -> list[Planned]:
    """Every cell of the grid for every seed, with its printed accuracy where the table has the cell."""
    printed = _printed_accuracies(number) if options.scale != "tiny" else {}
    seeds = options.seed_range(grid.seeds)
    planned = []
    for place in grid.places():
        recipe = place.config.recipe
        labels: dict[str, Label] = {
            "panel": place.panel,
            "row": place.row,
            "column": place.column,
            "octave": place.octave,
            "factor": factor_of(place.config, grid.stated),
        }
        accuracy = printed.get((place.panel, recipe.samples, recipe.batch_size, recipe.lr, recipe.weight_decay))
        if accuracy is not None:
            labels["printed"] = accuracy
        planned += [Planned(replace(place.config, seed=seed), {**labels, "seed": seed}) for seed in seeds]
    return planned


def _printed_accuracies(number: int) -> dict[tuple[str, int, int, float, float], float]:
    cells = yun_table(number).dropna()
    keys = zip(cells["panel"], cells["samples"], cells["batch_size"], cells["lr"], cells["weight_decay"], strict=True)
    return dict(zip(keys, cells["accuracy"].astype(float), strict=True))
