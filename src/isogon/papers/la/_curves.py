"""Learning curves of several schedules over several seeds: how far apart they are, and what they look like."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from isogon.papers.reproduction import UNKNOWN, Gap, Judgement, mean_lines, mean_of, points, worst_verdict
from isogon.report import FigureExhibit

#: number of parts of the run in which curves are compared: single epochs at a high rate are noise
PARTS = 8
#: two curves are the same when they differ by no more than this share of right answers: over the whole run (of the
#: training set), and at the end (of the test set)
TOLERANCE, END_TOLERANCE = 0.02, 0.01


def gap(table: pd.DataFrame, first: str, second: str, column: str, epochs: tuple[float, float] = (0, math.inf)) -> Gap:
    """The mean of `column` over a range of epochs of row `first`, less that of row `second`.

    Runs of one seed start from the same weights and see the same batches, so they are compared with each other.
    """
    rows = table[(table["epoch"] >= epochs[0]) & (table["epoch"] < epochs[1]) & (table["status"] == "finished")]
    means = rows.groupby(["row", "seed"])[column].mean().unstack("row")
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
    freedom = sum(part.freedom or 0 for part in gaps)
    return Gap(_rms([part.size for part in gaps]), _rms([part.error for part in gaps]), freedom)


def end_gap(table: pd.DataFrame, first: str, second: str, column: str = "test_accuracy") -> Gap:
    """The gap in the last part of the run."""
    epochs = _length(table)
    return gap(table, first, second, column, (math.floor(epochs * (1 - 1 / PARTS)), math.inf))


def judge_same_curves(table: pd.DataFrame, first: str, second: str, *, ends: bool = True) -> Judgement:
    """Whether two schedules learn alike: along the run and, where the rate comes down, at its `ends`."""
    whole, end = curve_gap(table, first, second), end_gap(table, first, second)
    numbers = {f"{first} − {second}: curve": whole.size, f"{first} − {second}: curve, error": whole.error}
    verdicts = [whole.within(TOLERANCE)]
    sentence = f"{first} and {second} differ by {points(whole)} along the run"
    if ends:
        numbers |= {f"{first} − {second}: end": end.size, f"{first} − {second}: end, error": end.error}
        verdicts.append(end.within(END_TOLERANCE))
        sentence += f" and by {points(end)} at its end"
    return Judgement(worst_verdict(verdicts), sentence, numbers)


def judge_better_end(table: pd.DataFrame, better: str, worse: str) -> Judgement:
    end = end_gap(table, better, worse)
    numbers = {f"{better} − {worse}: end": end.size, f"{better} − {worse}: end, error": end.error}
    return Judgement(end.above(), f"{better} ends {points(end)} above {worse}", numbers)


def figure(table: pd.DataFrame, column: str, y_name: str, *, log_y: bool = False) -> FigureExhibit:
    """One line per schedule over the epochs, the mean over its seeds."""
    lines = mean_lines(table, "epoch", column, by="row", shift=1)
    return FigureExhibit(y_name, "epoch", y_name, lines, log_y=log_y)


def accuracy_figures(table: pd.DataFrame) -> list[FigureExhibit]:
    return [figure(table, "train_accuracy", "train accuracy"), figure(table, "test_accuracy", "test accuracy")]


def _length(table: pd.DataFrame) -> int:
    return int(table["epoch"].max()) + 1 if len(table) else 0


def _rms(values: Sequence[float]) -> float:
    return math.sqrt(sum(value**2 for value in values) / len(values))
