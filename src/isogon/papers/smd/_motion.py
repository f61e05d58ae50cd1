"""Angles, norms and gradients of single layers beside the law: what Wan et al.'s figures 2, 3, 6 and 9 show."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from isogon.dynamics import ALL, MEAN_STEPS
from isogon.lab import Run
from isogon.papers.reproduction import Gap, Judgement, mean_of
from isogon.report import FigureExhibit, Line

#: the convolutions of the paper's figures, in our ResNets: layer1.0.conv2 and layer2.0.conv2
FIRST_STAGE, SECOND_STAGE = "body.0.0.main.1.conv.weight", "body.1.0.main.1.conv.weight"
#: measured and law agree when they differ by no more than this share
TOLERANCE = 0.1
# Rows that a run keeps of its steps: as many as a figure can show.
_MOST_ROWS = 300
# Parts of a stretch of steps whose means are taken for independent.
_BLOCKS = 5


def by_step(run: Run, layer: str) -> pd.DataFrame:
    """Norm, gradients and angle of `layer` at measured steps, with means over the last 200; `all` where it is not."""
    if not len(run.epochs):
        return pd.DataFrame()
    records = run.records
    chosen = layer if layer in set(records["layer"]) else ALL
    rows = records[(records["layer"] == chosen) & records["step_angle"].notna()].sort_values("step")
    window = max(1, MEAN_STEPS // max(1, run.config.monitor_every))
    means = rows[["unit_grad_sq", "adjusted_grad_sq"]].rolling(window, min_periods=1).mean()
    kept = rows[
        [
            "step",
            "epoch",
            "lr",
            "weight_decay",
            "norm",
            "predicted_norm",
            "unit_grad_sq",
            "adjusted_grad_sq",
            "step_angle",
            "predicted_step_angle",
        ]
    ].assign(mean_unit_grad_sq=means["unit_grad_sq"], mean_adjusted_grad_sq=means["adjusted_grad_sq"])
    every = math.ceil(len(kept) / _MOST_ROWS)
    return _with_stages(kept.iloc[::every] if every else kept).assign(status=run.status)


def by_layer(run: Run) -> pd.DataFrame:
    """For every layer and epoch: the root mean square of its step angles, the law's, its norm, its mean h."""
    return angles_by_layer(run.records).assign(status=run.status) if len(run.epochs) else pd.DataFrame()


def angles_by_layer(records: pd.DataFrame) -> pd.DataFrame:
    """What `by_layer` keeps of a monitor's records."""
    rows = records[(records["layer"] != ALL) & records["step_angle"].notna()]
    rows = rows.assign(square=rows["step_angle"] ** 2)
    kept = rows.groupby(["layer", "epoch"], as_index=False).agg(
        square=("square", "mean"),
        predicted_step_angle=("predicted_step_angle", "last"),
        norm=("norm", "last"),
        adjusted_grad_sq=("adjusted_grad_sq", "mean"),
        lr=("lr", "last"),
        weight_decay=("weight_decay", "last"),
    )
    kept = kept.assign(step_angle=np.sqrt(kept["square"])).drop(columns="square")
    return _with_stages(kept.sort_values(["epoch", "layer"]))


def _with_stages(rows: pd.DataFrame) -> pd.DataFrame:
    """The column `stage`: 0 until η·λ first changes; and `rescaled_norm`, what the norm would be at the first λ.

    A balanced run, where η and λ are divided by √κ each, is the run that divides η by κ and the weights by κ^(1/4): its
    weights are √(λ/λ₀) times as large there.
    """
    if not len(rows):
        return rows.assign(stage=[], rescaled_norm=[])
    intrinsic = rows["lr"] * rows["weight_decay"]
    changed = (intrinsic / intrinsic.shift() - 1).abs() > 1e-6
    scale = np.sqrt(rows["weight_decay"] / rows["weight_decay"].iloc[0])
    return rows.assign(stage=changed.cumsum(), rescaled_norm=rows["norm"] * scale)


def last_third(rows: pd.DataFrame, column: str = "step") -> pd.DataFrame:
    if not len(rows):
        return rows
    values = rows[column].to_numpy(dtype=float)
    low, high = values.min(), values.max()
    found: pd.DataFrame = rows[values > low + (high - low) * 2 / 3]
    return found


def excess_by_layer(rows: pd.DataFrame) -> Gap:
    """√(mean of Δ²)/Δ* − 1 of each layer and seed: the mean, and its standard error over them."""
    ratio = (rows["step_angle"] / rows["predicted_step_angle"]) ** 2
    return mean_of(ratio.groupby([rows["layer"], rows["seed"]]).mean() ** 0.5 - 1)


def excess_by_blocks(rows: pd.DataFrame, column: str, law: str, power: int = 1) -> Gap:
    """(mean of (measured/law)^power)^(1/power) − 1, its error from blocks of successive steps in each seed."""
    found: list[float] = []
    for _, one in rows.dropna(subset=[column, law]).groupby("seed"):
        ratio = ((one[column] / one[law]) ** power).to_numpy(dtype=float)
        found += [float(part.mean()) ** (1 / power) - 1 for part in np.array_split(ratio, _BLOCKS) if len(part)]
    return mean_of(pd.Series(found, dtype=float))


def near_law(name: str, found: Gap) -> Judgement:
    sentence = f"{name} is off the law by {_percent(found)}"
    return Judgement(found.within(TOLERANCE), sentence, {name: found.size, f"{name}, error": found.error})


def off_law(name: str, found: Gap, *, above: bool) -> Judgement:
    """Whether it is above (below) the law by more than the tolerance."""
    signed = found if above else Gap(-found.size, found.error, found.freedom)
    sentence = f"{name} is off the law by {_percent(found)}"
    return Judgement(signed.above(TOLERANCE), sentence, {name: found.size, f"{name}, error": found.error})


def _percent(found: Gap) -> str:
    return found.said(" %", times=100, digits=1, signed=True)


def layer_figure(rows: pd.DataFrame, title: str) -> FigureExhibit:
    """A line for each layer of the first seed, the law dashed."""
    one = rows[rows["seed"] == rows["seed"].min()]
    lines = [Line(str(layer), _epochs(own), list(own["step_angle"])) for layer, own in one.groupby("layer", sort=False)]
    law = one.groupby("epoch", as_index=False)["predicted_step_angle"].mean()
    lines.append(Line("law", _epochs(law), list(law["predicted_step_angle"]), dashed=True))
    return FigureExhibit(title, "epoch", "angle of a step (rad)", lines, log_y=True)


def step_figure(
    table: pd.DataFrame, title: str, y_name: str, columns: Sequence[tuple[str, str, str, bool]], *, log_y: bool = False
) -> FigureExhibit:
    """Lines over the steps of the first seed: (name, row, column, dashed) each."""
    lines = []
    for name, row, column, dashed in columns:
        one = table[table["row"] == row].dropna(subset=[column])
        one = one[one["seed"] == one["seed"].min()]
        if len(one):
            lines.append(Line(name, list(one["step"].astype(float)), list(one[column]), dashed=dashed))
    return FigureExhibit(title, "step", y_name, lines, log_y=log_y)


def _epochs(rows: pd.DataFrame) -> list[float]:
    return [float(epoch) + 1 for epoch in rows["epoch"]]
