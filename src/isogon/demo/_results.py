"""The results of the demo's runs: one row per run, and what follows from the rows alone."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from isogon.demo._plan import Size
from isogon.errors import IsogonError, last_line
from isogon.lab import Run


def make_rows(runs: Sequence[Run], size: Size) -> pd.DataFrame:
    """One row per run: its settings, tuning factor, test accuracy (per cent) and steady angle (degrees)."""
    return pd.DataFrame([_row(run, size) for run in runs])


def angle_curve(run: Run) -> pd.DataFrame:
    """The angle by which all weights together turned in each epoch, measured and predicted, in degrees."""
    if run.status == "failed":
        raise IsogonError(f"A run of the demo failed ({last_line(run.error)}): call the same command again to retry.")
    records = run.records
    ends = records[(records.layer == "all") & records.epoch_angle.notna()]
    return pd.DataFrame(
        {
            "epoch": ends.epoch.to_numpy() + 1,
            "angle": ends.epoch_angle.map(math.degrees).to_numpy(),
            "predicted": ends.predicted_epoch_angle.map(math.degrees).to_numpy(),
        }
    )


def best_factor(rows: pd.DataFrame) -> float:
    """The tuning factor with the best mean accuracy."""
    means = means_of(rows)["mean"]
    if means.isna().all():
        raise IsogonError("Every run of the search diverged: remove the demo's folder and try again.")
    return float(means.index[int(means.argmax())])


def with_factor(rows: pd.DataFrame, factor: float) -> pd.DataFrame:
    """The rows whose tuning factor is `factor`, up to rounding."""
    return rows[(rows.factor / factor - 1).abs() < 1e-6]


def means_of(rows: pd.DataFrame) -> pd.DataFrame:
    """By tuning factor: mean, lowest and highest accuracy of the seeds; NaN where one of them diverged."""
    complete = rows.groupby("factor").accuracy.agg(["mean", "min", "max"])
    return complete.where(~rows.accuracy.isna().groupby(rows.factor).any())


def seed_spread(rows: pd.DataFrame) -> float:
    """The largest difference in accuracy between runs that differ in nothing but the seed, in points."""
    means = means_of(rows)
    return float((means["max"] - means["min"]).max())


def _row(run: Run, size: Size) -> dict[str, object]:
    recipe, curve = run.config.recipe, angle_curve(run)
    steady = curve[curve.epoch.isin([epoch + 1 for epoch in size.steady_epochs])]
    return {
        "samples": recipe.samples,
        "batch_size": recipe.batch_size,
        "lr": recipe.lr,
        "weight_decay": recipe.weight_decay,
        "momentum": recipe.momentum,
        # Rounded, since a transferred weight decay gives the factor back but for its last bits.
        "factor": float(f"{recipe.tuning_factor:.9g}"),
        "seed": run.config.seed,
        "accuracy": 100 * run.accuracy,
        "angle": float(steady.angle.mean()),
        "predicted": float(steady.predicted.mean()),
        "images": run.images,
        "run": run.config.name,
    }
