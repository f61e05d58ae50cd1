"""The verdict on Yun's figures of angles and effective rates over epochs, and how they are shown.

Curves are compared by the ratio of the largest to the smallest: in the last half of each phase of the schedule (from
one drop of the learning rate to the next) the mean logarithm of each curve is taken, and the gap is the difference of
the two farthest curves, with `CLEAR` standard errors of that difference over the epochs. By theory an epoch's angle is
√(2F) in equilibrium, so curves may lie apart by √span where their tuning factors span that much; they agree where they
lie within a further √2, which is what one step of the papers' ×2 grids would make.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pandas as pd

from isogon.papers.reproduction import Judgement, Verdict, mean_line
from isogon.report import FigureExhibit, Line

#: parts of the run at which the learning rate drops
STEP: tuple[float, ...] = (0.5, 0.75)
COSINE: tuple[float, ...] = ()
#: labels of the curves that should agree, and of those they are compared with
TUNED, CONTRAST = "tuned", "contrast"
#: how much the effective rate may still move while it counts as settled
SETTLED = 0.1
#: standard errors that make a gap clear: it is the gap of the farthest two of six curves, searched in nine places
CLEAR = 4.0
NOTHING = "There are too few finished curves, or too few epochs of them, to compare."


class LogRatio(NamedTuple):
    """The logarithm of largest over smallest, and `CLEAR` times its standard error; NaN where that is unknown."""

    log_ratio: float
    error: float

    @property
    def ratio(self) -> float:
        return math.exp(self.log_ratio)


def windows(epochs: int, drops: Sequence[float]) -> list[tuple[int, int]]:
    """The last half of each phase, as (first epoch, epoch after the last).

    >>> windows(300, STEP), windows(300, COSINE)
    ([(75, 150), (187, 225), (262, 300)], [(150, 300)])
    """
    ends = [0.0, *drops, 1.0]
    return [(int((start + end) / 2 * epochs), int(end * epochs)) for start, end in pairwise(ends)]


def logs(rows: pd.DataFrame, value: str) -> pd.DataFrame:
    """The logarithm of `value`, one row per epoch and one column per curve, the mean over seeds of finished runs."""
    positive = rows[(rows["status"] == "finished") & (rows[value] > 0)]
    logarithms = positive.assign(log=np.log(positive[value].astype(float)))
    return logarithms.pivot_table(index="epoch", columns="column", values="log", aggfunc="mean")


def log_ratio_of(rows: pd.DataFrame, value: str, window: tuple[int, int]) -> LogRatio:
    """How far apart the curves of `rows` lie in the window."""
    table = logs(rows, value)
    part = table[(table.index >= window[0]) & (table.index < window[1])]
    if part.shape[1] < 2 or len(part) < 2:
        return LogRatio(math.nan, math.nan)
    means = part.mean()
    apart = (part[means.idxmax()] - part[means.idxmin()]).dropna()
    return LogRatio(float(means.max() - means.min()), CLEAR * float(apart.std()) / math.sqrt(len(apart)))


def allowed_log_ratio(rows: pd.DataFrame) -> float:
    """The logarithm of √(2 · span of the tuning factors)."""
    return math.log(2 * float(rows["factor"].max() / rows["factor"].min())) / 2


def judge_angles(table: pd.DataFrame, *, drops: Sequence[float] = STEP, value: str = "epoch_angle") -> Judgement:
    """Whether the tuned curves of each panel agree in every phase, and lie closer together than the contrast's."""
    if value not in table:
        return Judgement("undecided", NOTHING)
    verdicts: list[Verdict] = []
    numbers: dict[str, float] = {}
    phases = windows(int(table["epoch"].max()) + 1, drops)
    widest, narrowest = [math.nan] * len(phases), [math.nan] * len(phases)
    for panel, rows in table.groupby("panel"):
        tuned, contrast = rows[rows["kind"] == TUNED], rows[rows["kind"] == CONTRAST]
        for place, window in enumerate(phases):
            ours, other = log_ratio_of(tuned, value, window), log_ratio_of(contrast, value, window)
            numbers[f"{panel}{place + 1}_tuned"], numbers[f"{panel}{place + 1}_contrast"] = ours.ratio, other.ratio
            verdicts.append(_agreement(ours, other, allowed_log_ratio(tuned) if len(tuned) else math.nan))
            # fmax and fmin ignore panels without a number.
            widest[place] = float(np.fmax(widest[place], ours.ratio))
            narrowest[place] = float(np.fmin(narrowest[place], other.ratio))
    if np.isnan(widest).all() or np.isnan(narrowest).all():
        return Judgement("undecided", NOTHING, numbers)
    within, apart = (
        ", ".join("unknown" if math.isnan(ratio) else f"{ratio:.2f}" for ratio in ratios)
        for ratios in (widest, narrowest)
    )
    sentence = (
        f"In the last half of each phase the tuned curves lie within a factor of {within} of each other, the "
        f"contrast's are at least {apart} apart."
    )
    return Judgement(_overall(verdicts), sentence, numbers)


def _agreement(ours: LogRatio, other: LogRatio, limit: float) -> Verdict:
    if ours.log_ratio - ours.error > limit or ours.log_ratio - ours.error > other.log_ratio + other.error:
        return "fails"
    agree = ours.log_ratio + ours.error < limit and ours.log_ratio + ours.error < other.log_ratio - other.error
    return "holds" if agree else "undecided"


def _overall(verdicts: Sequence[Verdict]) -> Verdict:
    if "fails" in verdicts:
        return "fails"
    return "holds" if verdicts and set(verdicts) == {"holds"} else "undecided"


def judge_rates(table: pd.DataFrame) -> Judgement:
    """Figure 1: η/‖x‖² rises and settles before the first drop, at no common level; ηN/(B‖x‖²) agrees at equal N."""
    if "effective_lr" not in table or not (table["status"] == "finished").any():
        return Judgement("undecided", NOTHING)
    phases = windows(int(table["epoch"].max()) + 1, STEP)
    levels = log_ratio_of(table, "effective_lr", phases[0])
    if math.isnan(levels.error):
        return Judgement("undecided", NOTHING)
    rates = logs(table, "effective_lr")
    moved, risen = _movement(rates, *phases[0])
    verdicts: list[Verdict] = [
        "holds" if risen > 0 else "fails",
        _below(moved, math.log1p(SETTLED)),
        _below(LogRatio(-levels.log_ratio, levels.error), -math.log(2)),
    ]
    numbers = {"moved": moved.ratio, "risen": math.exp(risen), "levels": levels.ratio}
    sizes = table.groupby("samples")["column"].nunique()
    equal = table[table["samples"] == sizes.idxmax()]
    for place, window in enumerate(phases, start=1):
        same, every = (
            log_ratio_of(equal, "effective_lr_epoch", window),
            log_ratio_of(table, "effective_lr_epoch", window),
        )
        numbers[f"equal_n{place}"], numbers[f"all{place}"] = same.ratio, every.ratio
        verdicts.append(_agreement(same, every, allowed_log_ratio(equal)))
    sentence = (
        f"Before the first drop η/‖x‖² has changed by a factor of {numbers['risen']:.3g} or more and still moves by "
        f"{numbers['moved']:.3g} at most, at levels {levels.ratio:.3g} apart; per epoch it is within "
        f"{numbers['equal_n1']:.3g} at equal N and within {numbers['all1']:.3g} over all."
    )
    return Judgement(_overall(verdicts), sentence, numbers)


def _movement(rates: pd.DataFrame, start: int, end: int) -> tuple[LogRatio, float]:
    """The largest change from the window's first half to its second, and the smallest since the first epoch."""
    middle = (start + end) // 2
    early, late = (rates[(rates.index >= a) & (rates.index < b)] for a, b in ((start, middle), (middle, end)))
    change = (late.mean() - early.mean()).abs()
    error = CLEAR * np.sqrt(late.var() / len(late) + early.var() / len(early))
    return LogRatio(float(change.max()), float(error.max())), float((late.mean() - rates.iloc[0]).min())


def _below(value: LogRatio, limit: float) -> Verdict:
    if value.log_ratio - value.error > limit:
        return "fails"
    return "holds" if value.log_ratio + value.error < limit else "undecided"


def lines(rows: pd.DataFrame, value: str) -> list[Line]:
    """One line per column, named by its row, averaged over seeds."""
    rows = rows.dropna(subset=[value])
    curves = [curve for _, curve in rows.groupby(rows["column"].astype(int))]
    return [mean_line(curve, "epoch", value, str(curve["row"].iloc[0])) for curve in curves]


def show_angles(table: pd.DataFrame, *, title: str, contrast: str) -> list[FigureExhibit]:
    """The tuned curves of each panel with their angle in equilibrium, then the contrast under its own title."""
    if "epoch_angle" not in table:
        return []

    def panel(name: str, rows: pd.DataFrame, *, theory: bool) -> FigureExhibit:
        drawn = lines(rows, "epoch_angle")
        predicted = rows.dropna(subset=["predicted_epoch_angle"])
        if theory and len(predicted):
            drawn.append(mean_line(predicted, "epoch", "predicted_epoch_angle", "equilibrium", dashed=True))
        return FigureExhibit(name, "epoch", "angle per epoch [rad]", drawn, log_y=True)

    tuned, other = table[table["kind"] == TUNED], table[table["kind"] == CONTRAST]
    shown = [panel(f"{title} ({name})", rows, theory=True) for name, rows in tuned.groupby("panel")]
    if len(other):
        first = other[other["panel"] == other["panel"].iloc[0]]
        shown.append(panel(contrast, first, theory=False))
    return shown


def show_rates(table: pd.DataFrame) -> list[FigureExhibit]:
    """Figure 1 (a) and (b)."""
    if "effective_lr" not in table:
        return []
    panels = {
        "effective_lr": ("Figure 1 (a): effective learning rate", "η/‖x‖²"),
        "effective_lr_epoch": ("Figure 1 (b): effective learning rate per epoch", "ηN/(B‖x‖²)"),
    }
    return [
        FigureExhibit(title, "epoch", name, lines(table, value), log_y=True) for value, (title, name) in panels.items()
    ]
