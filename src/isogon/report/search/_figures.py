"""The figures of a search's page, as Plotly's `data` and `layout`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from isogon.errors import ArgumentError
from isogon.report._drawing import COLOURS, ordered_colours, plotly_layout, six_digits

if TYPE_CHECKING:
    from isogon.search import Curve, Outcome, StoredTrial

#: octaves either side of the top in which the fit is drawn, in steps of the grid: where it was fitted
_REACH = 2
_FULL = "#222222"
_LOST = {"diverged": "#B00020", "failed": "#777777", "pruned": "#C98A00"}


def accuracy_figure(outcome: Outcome) -> dict[str, Any]:
    """Accuracy against F at every data size: runs, their means, the fit near the top, F* with its interval."""
    unit = _unit(outcome)
    traces: list[dict[str, Any]] = []
    for place, (samples, curve) in enumerate(outcome.curve.items()):
        trials = [
            trial for trial in outcome.trials if trial.planned.purpose == "search" and trial.planned.samples == samples
        ]
        traces += _size_traces(f"{samples} samples", COLOURS[place % len(COLOURS)], trials, curve, unit)
    verified = [trial for trial in outcome.trials if trial.planned.purpose == "verify"]
    if verified:
        traces.append(_runs(f"verified, {outcome.study.recipe.samples} samples", _FULL, verified, unit, legend=True))
    traces += _lost_traces(outcome.trials, unit)
    metric = outcome.study.task.metric
    shown = f"test {metric}" if outcome.study.task.objective is None else f"{metric} that the objective returned"
    layout = plotly_layout("tuning factor F", f"{escape(shown)} (%)" if unit == 100 else escape(shown))
    layout["xaxis"] |= {"type": "log", "tickvals": _ticks(outcome), "tickformat": ".3g"}
    return {"data": traces, "layout": layout}


def trend_figure(outcome: Outcome) -> dict[str, Any]:
    """The tops against the data size, and the line that carries them to the full run."""
    trend = outcome.trend
    sizes = [*outcome.curve, trend.samples]
    line = _trace("trend", sizes, [trend.at(size) for size in sizes], mode="lines")
    tops = [
        _interval_trace(f"{size} samples", COLOURS[place % len(COLOURS)], size, curve.tuning_factor, curve.interval)
        for place, (size, curve) in enumerate(outcome.curve.items())
    ]
    full = _interval_trace("full run", _FULL, trend.samples, trend.tuning_factor, trend.interval)
    layout = plotly_layout("training samples", "best tuning factor F*")
    layout["xaxis"] |= {"type": "log", "tickvals": sorted(set(sizes))}
    layout["yaxis"]["type"] = "log"
    return {"data": [{**line, "line": {"color": "#999999", "dash": "dash"}}, *tops, full], "layout": layout}


def angle_figure(outcome: Outcome, folder: Path) -> dict[str, Any] | None:
    """The angle that all weights turned by in each epoch, for every F of the largest fraction; None without records."""
    from isogon.search import metric_value

    samples = max(outcome.curve)
    trials_of: dict[float, list[StoredTrial]] = {}
    for trial in sorted(outcome.trials, key=lambda trial: (trial.planned.tuning_factor, trial.planned.seed)):
        if trial.planned.samples == samples and trial.planned.purpose == "search":
            trials_of.setdefault(trial.planned.tuning_factor, []).append(trial)
    best = max(
        (trial for trials in trials_of.values() for trial in trials),
        key=lambda trial: -math.inf if trial.score is None else trial.score,
    )
    traces = []
    for colour, trials in zip(ordered_colours(len(trials_of)), trials_of.values(), strict=True):
        # One seed is enough: the angle hardly depends on it.
        trial = best if best in trials else next((trial for trial in trials if trial.score is not None), trials[0])
        curve = _angles(outcome, trial, folder)
        if curve is None:
            continue
        result = trial.status if trial.score is None else metric_value(outcome.study, trial.score)
        if trial == best:
            result += ", best"
        trace = _trace(f"F = {trial.planned.tuning_factor:.3g}: {result}", *curve, mode="lines")
        traces.append({**trace, "line": {"color": colour, "width": 4 if trial == best else 1.8}})
    if not traces:
        return None
    layout = plotly_layout("epoch", "angle turned in the epoch (degrees)")
    layout["yaxis"]["type"] = "log"
    return {"data": traces, "layout": layout}


def cost_figure(outcome: Outcome) -> dict[str, Any]:
    """Images seen by the search, fraction by fraction, against those of the same grid on the full data."""
    cost = outcome.cost
    traces = []
    for place, samples in enumerate(outcome.curve):
        seen = sum(
            trial.images
            for trial in outcome.trials
            if trial.planned.samples == samples and trial.planned.purpose == "search"
        )
        traces.append(_bar(f"{samples} samples", "this search", seen, COLOURS[place % len(COLOURS)]))
    if cost.verification_images:
        traces.append(_bar("verification", "verification", cost.verification_images, _FULL))
    by_grid = outcome.study.search.sampler == "grid"
    baseline = "the same grid on the full data" if by_grid else "as many factors on the full data"
    traces.append(_bar("full grid" if by_grid else "full data", baseline, cost.full_grid_images, "#99A3AD"))
    layout = plotly_layout("training images", "")
    layout |= {"barmode": "stack"}
    layout["yaxis"] |= {"automargin": True, "autorange": "reversed"}
    return {"data": traces, "layout": layout}


def _size_traces(
    name: str, colour: str, trials: Sequence[StoredTrial], curve: Curve, unit: float
) -> list[dict[str, Any]]:
    alive = [(factor, mean) for factor, mean in zip(curve.grid, curve.means, strict=True) if math.isfinite(mean)]
    means = _trace(name, [factor for factor, _ in alive], [unit * mean for _, mean in alive], mode="lines+markers")
    means |= {"line": {"color": colour, "width": 1}, "marker": {"color": colour, "size": 9}, "legendgroup": name}
    reach = 2.0 ** (_REACH * curve.step)
    low = max(curve.tuning_factor / reach, min(curve.grid))
    high = min(curve.tuning_factor * reach, max(curve.grid))
    # Not below the lowest mean: a cubic falls without end, and the picture would shrink to show it.
    factors = [
        factor
        for factor in np.geomspace(min(low, curve.tuning_factor), max(high, curve.tuning_factor), 60).tolist()
        if curve.accuracy(factor) >= np.nanmin(curve.means)
    ]
    fit = _trace(f"{name}: fit", factors, [unit * curve.accuracy(factor) for factor in factors], mode="lines")
    fit |= {"line": {"color": colour, "width": 2, "dash": "dash"}, "showlegend": False, "legendgroup": name}
    lower, upper = curve.interval
    top = _trace(f"{name}: F*", [curve.tuning_factor], [unit * curve.height], mode="markers")
    top |= {
        "marker": {"color": colour, "size": 14, "symbol": "star"},
        "error_x": _bars(curve.tuning_factor, lower, upper, colour),
        "legendgroup": name,
    }
    return [{**_runs(name, colour, trials, unit), "legendgroup": name}, means, fit, top]


def _runs(
    name: str, colour: str, trials: Sequence[StoredTrial], unit: float, *, legend: bool = False
) -> dict[str, Any]:
    """A dot for each run that finished."""
    alive = [(trial.planned.tuning_factor, trial.score) for trial in trials if trial.score is not None]
    dots = _trace(name, [factor for factor, _ in alive], [unit * accuracy for _, accuracy in alive], mode="markers")
    symbol = "diamond" if legend else "circle-open"
    return {**dots, "marker": {"color": colour, "size": 8, "symbol": symbol}, "showlegend": legend}


def _lost_traces(trials: Sequence[StoredTrial], unit: float) -> list[dict[str, Any]]:
    """A cross at the worst value for each run without a score, one trace per status."""
    foot = unit * min((trial.score for trial in trials if trial.score is not None), default=0.0)
    traces = []
    for status, colour in _LOST.items():
        planned = [trial.planned for trial in trials if trial.status == status]
        if planned:
            crosses = _trace(status, [plan.tuning_factor for plan in planned], [foot] * len(planned), mode="markers")
            texts = [f"{status}: {plan.samples} samples, seed {plan.seed}" for plan in planned]
            marker = {"color": colour, "size": 8, "symbol": "x"}
            traces.append({**crosses, "marker": marker, "text": texts, "hovertemplate": "%{text}"})
    return traces


def _angles(outcome: Outcome, trial: StoredTrial, folder: Path) -> tuple[list[int], list[float]] | None:
    """Epochs and degrees of a trial of the lab; None for the user's own objective, or without a monitor."""
    from isogon.dynamics import read

    if outcome.study.task.objective is not None:
        return None
    planned = trial.planned
    config = outcome.study.config(tuning_factor=planned.tuning_factor, samples=planned.samples, seed=planned.seed)
    try:
        records = read(folder / config.name)
    except (ArgumentError, OSError):
        return None
    ends = records[(records["layer"] == "all") & (records["epoch_angle"] > 0)]
    return ((ends["epoch"] + 1).tolist(), np.degrees(ends["epoch_angle"]).tolist()) if len(ends) else None


def _interval_trace(
    name: str, colour: str, samples: int, factor: float, interval: tuple[float, float]
) -> dict[str, Any]:
    point = _trace(name, [samples], [factor], mode="markers")
    return {**point, "marker": {"color": colour, "size": 11}, "error_y": _bars(factor, *interval, colour)}


def _bars(middle: float, low: float, high: float, colour: str) -> dict[str, Any]:
    ends = {"array": [max(0.0, high - middle)], "arrayminus": [max(0.0, middle - low)]}
    return {"type": "data", "symmetric": False, **ends, "color": colour, "thickness": 2}


def _bar(name: str, label: str, images: int, colour: str) -> dict[str, Any]:
    return {"type": "bar", "orientation": "h", "name": name, "y": [label], "x": [images], "marker": {"color": colour}}


def _trace(name: str, along: Sequence[float], upward: Sequence[float], *, mode: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": mode,
        "name": name,
        "x": list(along),
        "y": [six_digits(value) for value in upward],
        "hovertemplate": "%{y:.4g} at %{x:.4g}",
    }


def _ticks(outcome: Outcome) -> list[float]:
    """A tick at every tuning factor tried, rounded so that equal ones count once; a sampler has too many for ticks."""
    if outcome.study.search.sampler != "grid":
        return list(outcome.study.search.first_grid)
    return sorted(
        {float(f"{trial.planned.tuning_factor:.6g}") for trial in outcome.trials if trial.planned.purpose == "search"}
    )


def _unit(outcome: Outcome) -> float:
    """The factor from a score to the number that is shown: the lab's accuracies are shown in per cent."""
    from isogon.search import in_per_cent

    return 100.0 if in_per_cent(outcome.study) else outcome.study.task.score(1.0)
