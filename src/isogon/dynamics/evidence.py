"""Summaries of a record on which findings rest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

#: a learning rate divided by at least this within one measured step is a drop, not a smooth schedule
DROP = 1.5
# The share of a phase, at its end, over which angles are averaged, and the fewest rows for it.
_TAIL, _LEAST_ROWS = 0.25, 5


@dataclass(frozen=True)
class Drop:
    """A sudden fall of one layer's learning rate; `before` are the layer's rows of the phase that it ends."""

    step: int
    epoch: int
    factor: float
    before: pd.DataFrame


def drops(layer: pd.DataFrame) -> list[Drop]:
    """The drops in the rows of one layer."""
    lr = layer.lr.to_numpy()
    with np.errstate(divide="ignore", invalid="ignore"):
        fallen = lr[:-1] / lr[1:] >= DROP
    ends = np.flatnonzero(fallen) + 1
    found, start = [], 0
    for end in ends.tolist():
        row = layer.iloc[end]
        found.append(Drop(int(row.step), int(row.epoch), float(lr[end - 1] / lr[end]), layer.iloc[start:end]))
        start = end
    return found


def tail(rows: pd.DataFrame) -> pd.DataFrame:
    """The last quarter of some rows of one layer, five at least."""
    return rows.iloc[-max(_LEAST_ROWS, round(_TAIL * len(rows))) :]


def peak(layer: pd.DataFrame) -> pd.DataFrame:
    """The rows of one layer with the highest learning rate, as a recipe means it."""
    rows: pd.DataFrame = layer[layer.lr >= layer.lr.max() * (1 - 1e-9)]
    return rows


def root_mean_square(values: pd.Series[float]) -> float:
    """√(mean of squares), since theory speaks of mean squared angles; NaN where nothing is known."""
    known = values.dropna().to_numpy(dtype=float)
    return float(np.sqrt(np.mean(known**2))) if len(known) else float("nan")
