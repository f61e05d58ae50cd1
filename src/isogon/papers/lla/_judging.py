"""How far the lines of a figure are apart, whether that is within the noise, and how they are drawn."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from isogon.papers.reproduction import UNKNOWN, Gap, Judgement, mean_lines
from isogon.report import FigureExhibit

#: quantities that agree: accuracies within a point, effective learning rates within 10 %
ACCURACY_TOLERANCE, RATE_TOLERANCE = 0.01, 0.1
# Half of what the range of so many normal numbers of variance 1 exceeds in one case of 20.
_HALF_RANGE = {2: 1.39, 3: 1.66, 4: 1.82, 5: 1.93}
#: quantity → name of the axis, logarithmic or not
PANELS = {
    "train_accuracy": ("train accuracy", False),
    "test_accuracy": ("test accuracy", False),
    "norm": ("‖w‖", True),
    "effective_lr": ("effective learning rate η/‖w‖²", True),
}


def too_little_to_judge(what: str) -> Judgement:
    return Judgement("undecided", f"Too little to judge: {what}.")


def levels(table: pd.DataFrame, quantity: str) -> pd.DataFrame:
    """`mean` of `quantity` of each column, and its standard `error`.

    The error is that over seeds. Where a column has only one seed it is that over its rows (epochs), which is too small
    if neighbouring epochs are alike.
    """
    runs = table.groupby(["column", "seed"])[quantity].agg(["mean", "sem"])
    columns = runs["mean"].groupby("column").agg(["mean", "sem"])
    over_rows = runs["sem"].groupby("column").mean()
    return pd.DataFrame({"mean": columns["mean"], "error": columns["sem"].fillna(over_rows)})


def spread(table: pd.DataFrame, quantity: str) -> Gap:
    """Largest less smallest of the columns' levels; twice its error is the range that noise alone seldom exceeds."""
    columns = levels(table, quantity)
    if len(columns) < 2:
        return UNKNOWN
    error = math.sqrt(float(np.mean(np.square(columns["error"]))))
    return Gap(float(np.ptp(columns["mean"])), _HALF_RANGE[min(len(columns), max(_HALF_RANGE))] * error)


def lead(table: pd.DataFrame, first: str, second: str, quantity: str) -> Gap:
    """The level of column `first` less that of `second`."""
    columns = levels(table, quantity)
    means, errors = columns["mean"].to_dict(), columns["error"].to_dict()
    if first not in means or second not in means:
        return UNKNOWN
    return Gap(means[first] - means[second], math.hypot(errors[first], errors[second]))


def endings(table: pd.DataFrame, share: float = 0.1) -> pd.DataFrame:
    """The rows of the last `share` of each run's epochs, two or more."""
    lengths = table.groupby(["column", "seed"])["epoch"].transform("max") + 1
    return table[table["epoch"] >= lengths - np.maximum(2, np.round(share * lengths))]


def panels(
    table: pd.DataFrame, title: str, quantities: Sequence[str] = tuple(PANELS), x: str = "epoch"
) -> list[FigureExhibit]:
    """One figure per quantity with one line per column, the mean over its seeds."""
    return [
        FigureExhibit(
            title=f"{title}: {PANELS[quantity][0]}",
            x_name=x,
            y_name=PANELS[quantity][0],
            lines=mean_lines(table, x, quantity, by="column"),
            log_y=PANELS[quantity][1],
        )
        for quantity in quantities
        if len(table) and quantity in table
    ]


def rank_correlation(first: pd.Series[float], second: pd.Series[float]) -> float:
    """Spearman's, over the labels that have a number in both; that of pandas imports SciPy, which takes seconds."""
    ranks = pd.concat([first, second], axis=1, keys=["first", "second"]).dropna().rank()
    return float(ranks["first"].corr(ranks["second"]))


def numbers_of(gaps: Mapping[str, Gap]) -> dict[str, float]:
    return {name: value for key, gap in gaps.items() for name, value in ((key, gap.size), (f"{key}, error", gap.error))}
