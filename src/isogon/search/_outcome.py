"""`Outcome`: what a search found, how surely, and what it cost."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isogon.files import write_json
from isogon.recipe import Recipe
from isogon.search.fit import Curve, Trend
from isogon.search.study import Study
from isogon.search.trials import StoredTrial, TrialStatus

RECIPE, OUTCOME = "recipe.toml", "outcome.json"
#: how a trial can end without a score
LOST: tuple[TrialStatus, ...] = ("diverged", "failed", "pruned")


@dataclass(frozen=True)
class Cost:
    """Training images seen and seconds of training, against as many tuning factors at the full size."""

    images: int
    seconds: float
    full_grid_images: int
    verification_images: int

    @property
    def share(self) -> float:
        """Images of the search as a part of the full grid's; verification is counted apart."""
        return self.images / self.full_grid_images


@dataclass(frozen=True)
class Outcome:
    """The answer: `recipe`, and the `interval` of the value that was asked for (`unknown`).

    `curve` is the fitted curve at each data size, `trend` the step from them to the full size.
    """

    study: Study
    curve: Mapping[int, Curve]
    trend: Trend
    trials: Sequence[StoredTrial]

    @property
    def rows(self) -> Sequence[StoredTrial]:
        """The name of `trials` in version 0.1, for one version more."""
        return self.trials

    @property
    def unknown(self) -> str:
        return self.study.recipe.unknown

    @property
    def tuning_factor(self) -> float:
        return self.trend.tuning_factor

    @property
    def recipe(self) -> Recipe:
        return self.study.recipe.recipe(tuning_factor=self.trend.tuning_factor)

    @property
    def interval(self) -> tuple[float, float]:
        low, high = (
            getattr(self.study.recipe.recipe(tuning_factor=factor), self.unknown) for factor in self.trend.interval
        )
        return low, high

    @property
    def cost(self) -> Cost:
        searched = [trial for trial in self.trials if trial.planned.purpose == "search"]
        study = self.study
        full_run = study.recipe.samples * study.recipe.epochs
        return Cost(
            images=sum(trial.images for trial in searched),
            seconds=sum(trial.seconds for trial in self.trials),
            full_grid_images=full_run * study.search.first_count * study.search.seeds,
            verification_images=sum(trial.images for trial in self.trials if trial.planned.purpose == "verify"),
        )

    @property
    def lost(self) -> dict[str, int]:
        """How many trials diverged, failed and were pruned."""
        return {status: sum(trial.status == status for trial in self.trials) for status in LOST}

    def verified(self) -> dict[float, list[float]]:
        """Scores at the full size by tuning factor, where the study asked for verification."""
        scores: dict[float, list[float]] = {}
        for trial in self.trials:
            if trial.planned.purpose == "verify" and trial.score is not None:
                scores.setdefault(trial.planned.tuning_factor, []).append(trial.score)
        return scores

    def to_dict(self) -> dict[str, Any]:
        return {
            "metric": self.study.task.metric,
            "direction": self.study.task.direction,
            "unknown": self.unknown,
            self.unknown: getattr(self.recipe, self.unknown),
            "interval": list(self.interval),
            "tuning_factor": self.tuning_factor,
            "tuning_factor_interval": list(self.trend.interval),
            "tops": {str(samples): curve.tuning_factor for samples, curve in self.curve.items()},
            "flat": {str(samples): curve.flat for samples, curve in self.curve.items()},
            "seeds_needed": {str(samples): curve.seeds_needed for samples, curve in self.curve.items()},
            "images": self.cost.images,
            "images_of_full_grid": self.cost.full_grid_images,
            "seconds": self.cost.seconds,
            **self.lost,
        }

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write `recipe.toml`, which `isogon predict` and `transfer` read, and `outcome.json`; the recipe's path."""
        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        self.recipe.save(target / RECIPE)
        write_json(target / OUTCOME, self.to_dict())
        return target / RECIPE
