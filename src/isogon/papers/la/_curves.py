"""Learning curves of several schedules over several seeds: how far apart they are, and what they look like."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from isogon.papers.reproduction import UNKNOWN, Gap, Judgement, mean_of, points, worst
from isogon.report import FigureExhibit, Line

#: a curve is compared in so many parts of the run: single epochs at a high rate are noise
PARTS = 8
#: two curves are the same when they differ by no more than this share of right answers: over the whole run (of the
#: training set), and at the end (of the test set)
TOLERANCE, END_TOLERANCE = 0.02, 0.01


def gap(table: pd.DataFrame, first: str, second: str, column: str, epochs: tuple[float, float] = (0, math.inf)) -> Gap:
    """The mean of `column` over epochs from … up to … of row `first`, less that of row `second`.

    Runs of one seed start from the same weights and see the same batches, so they are compared with each other.
    """
    here = table[(table["epoch"] >= epochs[0]) & (table["epoch"] < epochs[1]) & (table["status"] == "finished")]
    means = here.groupby(["row", "seed"])[column].mean().unstack("row")
    if first not in means or second not in means:
        return UNKNOWN
    differences = (means[first] - means[second]).dropna()
    return mean_of(differences)


def curve_gap(table: pd.DataFrame, first: str, second: str, column: str = "train_accuracy") -> Gap:
    """The root mean square of the gaps in the parts of the run, and of their errors."""
    epochs = _length(table)
    edges = np.linspace(0, epochs, min(PARTS, epochs) + 1)
    gaps = [gap(table, first, second, column, (low, high)) for low, high in itertools.pairwise(edges)]
    if not gaps:
        return UNKNOWN
    freedom = sum(one.freedom or 0 for one in gaps)
    return Gap(_rms([one.size for one in gaps]), _rms([one.error for one in gaps]), freedom)


def end_gap(table: pd.DataFrame, first: str, second: str, column: str = "test_accuracy") -> Gap:
    """The gap in the last part of the run."""
    epochs = _length(table)
    return gap(table, first, second, column, (math.floor(epochs * (1 - 1 / PARTS)), math.inf))


def same_curves(table: pd.DataFrame, first: str, second: str, *, ends: bool = True) -> Judgement:
    """Whether two schedules learn alike: along the run and, where the rate comes down, at its `ends`."""
    whole, end = curve_gap(table, first, second), end_gap(table, first, second)
    numbers = {f"{first} − {second}: curve": whole.size, f"{first} − {second}: curve, error": whole.error}
    verdicts = [whole.within(TOLERANCE)]
    sentence = f"{first} and {second} differ by {points(whole)} along the run"
    if ends:
        numbers |= {f"{first} − {second}: end": end.size, f"{first} − {second}: end, error": end.error}
        verdicts.append(end.within(END_TOLERANCE))
        sentence += f" and by {points(end)} at its end"
    return Judgement(worst(verdicts), sentence, numbers)


def better_at_the_end(table: pd.DataFrame, better: str, worse: str) -> Judgement:
    end = end_gap(table, better, worse)
    numbers = {f"{better} − {worse}: end": end.size, f"{better} − {worse}: end, error": end.error}
    return Judgement(end.above(), f"{better} ends {points(end)} above {worse}", numbers)


def figure(
    table: pd.DataFrame, column: str, y_name: str, *, title: str = "", rows: Sequence[str] = (), log_y: bool = False
) -> FigureExhibit:
    """A line for each schedule over the epochs, the mean over its seeds."""
    chosen = list(rows) or list(dict.fromkeys(table["row"]))
    lines = []
    for row in chosen:
        mean = table[table["row"] == row].groupby("epoch")[column].mean().dropna()
        if len(mean):
            lines.append(Line(row, [float(epoch) + 1 for epoch in mean.index], [float(value) for value in mean]))
    return FigureExhibit(title or y_name, "epoch", y_name, lines, log_y=log_y)


def accuracy_figures(table: pd.DataFrame) -> list[FigureExhibit]:
    return [figure(table, "train_accuracy", "train accuracy"), figure(table, "test_accuracy", "test accuracy")]


def _length(table: pd.DataFrame) -> int:
    return int(table["epoch"].max()) + 1 if len(table) else 0


def _rms(values: Sequence[float]) -> float:
    return math.sqrt(sum(value**2 for value in values) / len(values))
