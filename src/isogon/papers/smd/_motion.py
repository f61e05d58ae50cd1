"""Angles, norms and gradients of single layers beside the law: what Wan et al.'s figures 2, 3, 6 and 9 show."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from isogon.dynamics import ALL, MEAN_STEPS
from isogon.lab import Run
from isogon.papers.reproduction import Gap, Judgement, Verdict, mean_line, mean_lines, mean_of
from isogon.report import FigureExhibit, Line

#: the convolutions of the paper's figures, in our ResNets: layer1.0.conv2 and layer2.0.conv2
FIRST_STAGE, SECOND_STAGE = "body.0.0.main.1.conv.weight", "body.1.0.main.1.conv.weight"
#: measured and law agree when they differ by no more than this share
TOLERANCE = 0.1
# The most rows that are kept of a run's steps: as many as a figure can show.
_MOST_ROWS = 300
# Parts of a stretch of steps whose means count as independent.
_BLOCKS = 5


def by_step(run: Run, layer: str) -> pd.DataFrame:
    """Norm, gradients and angle of `layer` at measured steps, with means over the last 200; of `all` without it."""
    if not len(run.epochs):
        return pd.DataFrame()
    records = run.records
    name = layer if layer in set(records["layer"]) else ALL
    rows = records[(records["layer"] == name) & records["step_angle"].notna()].sort_values("step")
    window = max(1, MEAN_STEPS // max(1, run.config.monitor_every))
    means = rows[["unit_grad_sq", "adjusted_grad_sq"]].rolling(window, min_periods=1).mean()
    steps = rows[
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
    every = math.ceil(len(steps) / _MOST_ROWS)
    return _add_stages(steps.iloc[::every] if every else steps).assign(status=run.status)


def by_layer(run: Run) -> pd.DataFrame:
    """For every layer and epoch: the root mean square of its step angles, the law's, its norm, its mean h."""
    return angles_by_layer(run.records).assign(status=run.status) if len(run.epochs) else pd.DataFrame()


def angles_by_layer(records: pd.DataFrame) -> pd.DataFrame:
    """What `by_layer` keeps of a monitor's records."""
    rows = records[(records["layer"] != ALL) & records["step_angle"].notna()]
    rows = rows.assign(square=rows["step_angle"] ** 2)
    means = rows.groupby(["layer", "epoch"], as_index=False).agg(
        square=("square", "mean"),
        predicted_step_angle=("predicted_step_angle", "last"),
        norm=("norm", "last"),
        adjusted_grad_sq=("adjusted_grad_sq", "mean"),
        lr=("lr", "last"),
        weight_decay=("weight_decay", "last"),
    )
    means = means.assign(step_angle=np.sqrt(means["square"])).drop(columns="square")
    return _add_stages(means.sort_values(["epoch", "layer"]))


def _add_stages(rows: pd.DataFrame) -> pd.DataFrame:
    """Add the columns `stage`, 0 until η·λ first changes, and `rescaled_norm`, what the norm would be at the first λ.

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
    last: pd.DataFrame = rows[values > low + (high - low) * 2 / 3]
    return last


def excess_by_layer(rows: pd.DataFrame) -> Gap:
    """√(mean of Δ²)/Δ* − 1 of each layer and seed: the mean, and its standard error over them."""
    ratio = (rows["step_angle"] / rows["predicted_step_angle"]) ** 2
    return mean_of(ratio.groupby([rows["layer"], rows["seed"]]).mean() ** 0.5 - 1)


def excess_by_blocks(rows: pd.DataFrame, column: str, law: str, power: int = 1) -> Gap:
    """(mean of (measured/law)^power)^(1/power) − 1, its error from blocks of successive steps in each seed."""
    excesses: list[float] = []
    for _, run in rows.dropna(subset=[column, law]).groupby("seed"):
        ratio = ((run[column] / run[law]) ** power).to_numpy(dtype=float)
        excesses += [float(part.mean()) ** (1 / power) - 1 for part in np.array_split(ratio, _BLOCKS) if len(part)]
    return mean_of(pd.Series(excesses, dtype=float))


def judge_near_law(name: str, excess: Gap) -> Judgement:
    """Whether it is within the tolerance of the law."""
    return _judge_excess(name, excess, excess.within(TOLERANCE))


def judge_off_law(name: str, excess: Gap, *, above: bool) -> Judgement:
    """Whether it is above (below) the law by more than the tolerance."""
    signed = excess if above else Gap(-excess.size, excess.error, excess.freedom)
    return _judge_excess(name, excess, signed.above(TOLERANCE))


def _judge_excess(name: str, excess: Gap, verdict: Verdict) -> Judgement:
    sentence = f"{name} is off the law by {excess.text(' %', times=100, digits=1, signed=True)}"
    return Judgement(verdict, sentence, {name: excess.size, f"{name}, error": excess.error})


def layer_figure(rows: pd.DataFrame, title: str) -> FigureExhibit:
    """One line per layer of the first seed, the law dashed."""
    first = rows[rows["seed"] == rows["seed"].min()]
    lines = mean_lines(first, "epoch", "step_angle", by="layer", shift=1)
    lines.append(mean_line(first, "epoch", "predicted_step_angle", "law", shift=1, dashed=True))
    return FigureExhibit(title, "epoch", "angle of a step (rad)", lines, log_y=True)


def step_figure(
    table: pd.DataFrame, title: str, y_name: str, columns: Sequence[tuple[str, str, str, bool]], *, log_y: bool = False
) -> FigureExhibit:
    """Lines over the steps of the first seed: (name, row, column, dashed) each."""
    lines = []
    for name, row, column, dashed in columns:
        run = table[table["row"] == row].dropna(subset=[column])
        run = run[run["seed"] == run["seed"].min()]
        if len(run):
            lines.append(Line(name, list(run["step"].astype(float)), list(run[column]), dashed=dashed))
    return FigureExhibit(title, "step", y_name, lines, log_y=log_y)
