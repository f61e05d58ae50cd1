"""The user's own training as an objective: `def objective(trial) -> float`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import Any

from isogon import named
from isogon.errors import ArgumentError, IsogonError
from isogon.recipe import Recipe


class Pruned(Exception):
    """Raised by `trial.report` where the study's pruner has stopped the trial; let it pass through the objective."""

    def __init__(self, epochs: int) -> None:
        super().__init__(f"stopped after {epochs} epochs")
        self.epochs = epochs


@dataclass(frozen=True)
class Trial:
    """The argument of an objective: train with `recipe`, seeded by `seed`, and return the study's metric.

    That is the test accuracy, from 0 to 1, unless the study names another: with `metric = "loss"` return the loss.

    `recipe.samples` is how many training samples to use; take nested subsets, so that sizes can be compared. `folder`
    is the trial's own and stays when it is killed: resume from a checkpoint there. `report(step, value)` shows
    progress; steps are epochs, counted from 0. With a pruner it raises `Pruned` where the trial is to stop.
    """

    recipe: Recipe
    seed: int
    folder: Path
    device: str
    report: Callable[[int, float], None] = field(repr=False)


def find_objective(path: str) -> Callable[[Trial], Any]:
    """The function at `package.module:function` or `file.py:function`."""
    function = named.find("objective", path)
    if not callable(function):
        raise ArgumentError("objective", "a function", path, f"it names a {type(function).__name__}")
    return function  # type: ignore[no-any-return]


def value_of(path: str, trial: Trial, metric: str) -> float:
    """Call the objective; its result as a number, NaN where the trial diverged."""
    value = find_objective(path)(trial)
    if getattr(value, "numel", None) is not None and value.numel() == 1:  # a tensor, such as the mean of right answers
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, Real):
        raise IsogonError(f"objective {path} must return a number, got {value!r}: return the {metric}.")
    return math.nan if math.isinf(float(value)) else float(value)
