"""Is mine normal? Published recipes, by how far their weights turn, and where another recipe stands among them."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

from isogon.recipe._recipe import Recipe


@dataclass(frozen=True)
class PublishedRecipe:
    """A recipe that others trained with; samples and batch are in `unit`, `source` is where it was read."""

    name: str
    recipe: Recipe
    unit: str
    source: str

    @property
    def turning(self) -> float:
        """epochs · F: how often the weights forget their direction in the whole run, in equilibrium."""
        return turning_of(self.recipe)


@dataclass(frozen=True)
class Placement:
    """Where a recipe stands among published ones of its kind, which are sorted by epochs · F."""

    kind: str
    below: int
    peers: tuple[PublishedRecipe, ...]
    nearest: tuple[PublishedRecipe, ...]

    def __str__(self) -> str:
        low, high = self.peers[0], self.peers[-1]
        return (
            f"epochs · F is above that of {self.below} of {len(self.peers)} published recipes of {self.kind} (from "
            f"{low.turning:.2g}, {low.name}, to {high.turning:.2g}, {high.name})."
        )


def turning_of(recipe: Recipe) -> float:
    """epochs · F; without epochs, of one."""
    return (recipe.epochs or 1) * recipe.tuning_factor


@lru_cache(maxsize=1)
def published_recipes() -> tuple[PublishedRecipe, ...]:
    """All of `published.csv`, least epochs · F first.

    >>> len(published_recipes()) > 20, published_recipes()[0].unit
    (True, 'sequences')
    """
    text = (files("isogon.recipe") / "published.csv").read_text(encoding="utf-8")
    entries = [_entry(row) for row in csv.DictReader(text.splitlines())]
    return tuple(sorted(entries, key=lambda entry: entry.turning))


def _entry(row: dict[str, str]) -> PublishedRecipe:
    recipe = Recipe(
        optimizer=row["optimizer"],
        lr=float(row["lr"]),
        weight_decay=float(row["weight_decay"]),
        momentum=float(row["momentum"]),
        beta2=float(row["beta2"]) if row["beta2"] else None,
        batch_size=int(row["batch_size"]),
        samples=int(row["samples"]),
        epochs=float(row["epochs"]),
        convention=row["convention"] or None,
    )
    return PublishedRecipe(row["name"], recipe, row["unit"], row["source"])


def place(recipe: Recipe, among: Sequence[PublishedRecipe] | None = None, count: int = 4) -> Placement:
    """Where `recipe` stands among the published ones that see each sample once, or several times, as it does.

    >>> mine = Recipe(optimizer="adamw", lr=1e-3, weight_decay=0.05, batch_size=1024, samples=1_281_167, epochs=300)
    >>> place(mine).nearest[0].name
    'Swin-T, torchvision'
    """
    once = recipe.epochs is not None and recipe.epochs <= 1
    entries = published_recipes() if among is None else sorted(among, key=lambda entry: entry.turning)
    peers = tuple(entry for entry in entries if ((entry.recipe.epochs or 1) <= 1) == once)
    mine = turning_of(recipe)
    alike = sorted(peers, key=lambda entry: abs(math.log(entry.turning / mine)) if mine else entry.turning)
    return Placement(
        kind="one epoch" if once else "several epochs",
        below=sum(entry.turning < mine for entry in peers),
        peers=peers,
        nearest=tuple(sorted(alike[:count], key=lambda entry: entry.turning)),
    )
