"""Summaries of a record on which findings rest."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

#: a learning rate divided by at least this from one measured step to the next is a drop …
DROP = 1.5
# … where it had not fallen before for this share of the run: near its end a cosine, too, falls by any factor at once.
# A relative fall below the second counts as none, and so does growth below the third: exponential schedules grow.
_PHASE, _FALL, _RISE = 1 / 6, 1e-3, 1.2
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
    """The drops in the rows of one layer, each at the end of a phase; a smooth decay has none.

    Before a drop the rate stays where it is for a while. A fall by less than a drop may be the beginning of a smooth
    decay, be it in steps of an epoch each; what falls after it belongs to that, until the rate rests for longer.
    """
    lr, steps = layer.lr.to_numpy(), layer.step.to_numpy()
    falls = np.flatnonzero(lr[1:] < (1 - _FALL) * lr[:-1]) + 1
    sudden, start, last_fall = [], 0, 0
    # How long the last step of a smooth decay was, 0 outside of one; known up to the distance between two rows.
    stair, apart = 0.0, float(np.median(np.diff(steps))) if len(steps) > 1 else 0.0
    for end in falls.tolist():
        lasted, so_far = steps[end] - steps[last_fall], steps[end] - steps[0]
        last_fall = end
        factor = float(lr[end - 1] / lr[end]) if lr[end] > 0 else math.inf
        smooth = stair > 0 and lasted < 2 * (stair + apart)
        stair = float(lasted) if factor < DROP or smooth else 0.0
        if stair:
            continue
        level = end >= 2 and (1 - _FALL) * lr[end - 2] <= lr[end - 1] <= _RISE * lr[end - 2]
        if level and lasted >= _PHASE * so_far:
            row = layer.iloc[end]
            sudden.append(Drop(int(row.step), int(row.epoch), factor, layer.iloc[start:end]))
            start = end
    return sudden


def tail(rows: pd.DataFrame) -> pd.DataFrame:
    """The last quarter of some rows of one layer, five at least."""
    return rows.iloc[-max(_LEAST_ROWS, round(_TAIL * len(rows))) :]


def peak(layer: pd.DataFrame) -> pd.DataFrame:
    """The rows of one layer with the highest learning rate, as a recipe means it."""
    rows: pd.DataFrame = layer[layer.lr >= layer.lr.max() * (1 - 1e-9)]
    return rows


def root_mean_square(values: pd.Series[float]) -> float:
    """√(mean of squares), since theory is about mean squared angles; NaN where nothing is known."""
    known = values.dropna().to_numpy(dtype=float)
    return float(np.sqrt(np.mean(known**2))) if len(known) else float("nan")
