"""Wan et al.'s figures 4 and 5: the norm maps of SGD and SGDM under gradients whose size changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import pandas as pd

from isogon.papers.reproduction import Experiment, Judgement, Options, Scale
from isogon.report import Exhibit, FigureExhibit, Line
from isogon.theory import Floats, approach_rate, equilibrium_norm, sgd_norm_map, sgdm_norm_map

Kind = Literal["SGD", "SGDM"]
_LR, _WEIGHT_DECAY, _MOMENTUM, _START = 0.1, 1e-3, 0.9, 10.0
#: L_t = E L_t + ε, ε uniform between −3 and 3
_NOISE = 3.0
# E L changes slowly compared with the map's own time 1/(4x'), which is what smooth must mean: a run is 100 of those.
_TIMES = 100
_SEEDS: dict[Scale, int] = {"tiny": 1, "small": 3, "paper": 3}
#: E L_t as a function of t/T; the titles of the paper's panels are lost
SHAPES: dict[str, Callable[[Floats], Floats]] = {
    "constant": lambda t: 10 + 0 * t,
    "line": lambda t: 5 + 15 * t,
    "wave": lambda t: 10 + 5 * np.sin(4 * np.pi * t),
    "decay": lambda t: 5 + 15 * np.exp(-3 * t),
}
#: mean distance from the moving target: near, and no longer near
NEAR, FAR = 0.05, 0.1
_KEPT = 200


def _momentum(kind: Kind) -> float:
    return _MOMENTUM if kind == "SGDM" else 0.0


def _rate(kind: Kind) -> float:
    return approach_rate("sgd", lr=_LR, weight_decay=_WEIGHT_DECAY, momentum=_momentum(kind))


def _path(kind: Kind, energies: Floats) -> Floats:
    """‖w_t‖² under L_t = `energies`."""
    if kind == "SGD":
        return sgd_norm_map(_START, energies, lr=_LR, weight_decay=_WEIGHT_DECAY)
    return sgdm_norm_map(_START, energies, lr=_LR, weight_decay=_WEIGHT_DECAY, momentum=_MOMENTUM)[:, 0]


def _simulate(kind: Kind, shape: str, steps: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    mean = SHAPES[shape](np.arange(steps) / steps)
    path = _path(kind, mean + rng.uniform(-_NOISE, _NOISE, steps))[:-1]
    unit = equilibrium_norm("sgd", lr=_LR, weight_decay=_WEIGHT_DECAY, momentum=_momentum(kind), unit_grad_sq=1.0)
    target = unit**2 * np.sqrt(mean)
    every = steps // _KEPT
    # Settled: within 5 % of the target for the first time.
    near = np.abs(path / target - 1) <= NEAR
    settled = float(np.argmax(near)) if near.any() else float("nan")
    table = pd.DataFrame({"step": np.arange(steps), "unit_grad_sq": mean, "norm_sq": path, "target": target})
    return table.iloc[::every].assign(panel=shape, row=kind, seed=seed, settled=settled)


def _compute(kind: Kind) -> Callable[[Options], pd.DataFrame]:
    def compute(options: Options) -> pd.DataFrame:
        steps = round(_TIMES / _rate(kind))
        seeds = options.seed_range(_SEEDS[options.scale])
        tables = [_simulate(kind, shape, steps, seed) for shape in SHAPES for seed in seeds]
        if kind == "SGDM":  # to see which is faster
            tables += [_simulate("SGD", "constant", steps, seed) for seed in seeds]
        return pd.concat(tables, ignore_index=True)

    return compute


def _judge_tracking(table: pd.DataFrame, kind: Kind) -> Judgement:
    """Whether ‖w‖² follows its target in every panel, from five times the approach's own time on."""
    late = table[(table["row"] == kind) & (table["step"] > 5 / _rate(kind))]
    errors = {str(p): float((r["norm_sq"] / r["target"] - 1).abs().mean()) for p, r in late.groupby("panel")}
    numbers = {f"{panel}: mean distance from the target": error for panel, error in errors.items()}
    if set(errors) != set(SHAPES):
        return Judgement("undecided", "The simulation is too short, or panels are missing.", numbers)
    largest = max(errors.values())
    sentence = f"‖w‖² of {kind} is on average within {largest:.1%} of its moving target in every panel."
    return Judgement("holds" if largest <= NEAR else "fails" if largest > FAR else "undecided", sentence, numbers)


def _judge_speed(table: pd.DataFrame) -> Judgement:
    """Figure 4's claim for SGDM, and that SGD takes several times as many steps to settle (1/(1−α) = 10 at equal L)."""
    tracks = _judge_tracking(table, "SGDM")
    settled = table[table["panel"] == "constant"].groupby("row")["settled"].mean()
    if tracks.verdict != "holds" or not {"SGD", "SGDM"} <= set(settled.dropna().index):
        return tracks
    ratio = float(settled["SGD"] / settled["SGDM"])
    sentence = f"{tracks.sentence} SGD takes {ratio:.1f} times as many steps to settle."
    return Judgement("holds" if ratio > 2 else "fails", sentence, {**tracks.numbers, "SGD's steps over SGDM's": ratio})


def _show(table: pd.DataFrame) -> Sequence[Exhibit]:
    exhibits = []
    first = table[table["seed"] == table["seed"].min()]
    for panel, rows in first.groupby("panel", sort=False):
        lines = []
        for row, path in rows.groupby("row"):
            steps = list(path["step"].astype(float))
            lines += [
                Line(f"‖w‖² of {row}", steps, list(path["norm_sq"])),
                Line(f"target of {row}", steps, list(path["target"]), dashed=True),
            ]
        lines.append(Line("E L", list(rows["step"].astype(float)), list(rows["unit_grad_sq"])))
        exhibits.append(FigureExhibit(str(panel), "step", "‖w‖², E L", lines))
    return exhibits


_CHOICES = (
    f"shapes of E L: {', '.join(SHAPES)}, between 5 and 20 (the paper's are lost)",
    f"a run is {_TIMES} times 1/(4ηλ) long, with momentum (1−α)/(4ηλ): 250,000 and 25,000 steps",
    "in runs of a sixth of that, 16 times 1/(4ηλ), SGD lags behind the wave by 11 % on average",
)
FIGURE_4 = Experiment(
    id="smd/fig4",
    title="The norm map of SGD under gradients of changing size",
    claim="The squared norm follows √(Lη/2λ) as long as E L changes smoothly.",
    judge=lambda table: _judge_tracking(table, "SGD"),
    show=_show,
    compute=_compute("SGD"),
    choices=_CHOICES,
)
FIGURE_5 = Experiment(
    id="smd/fig5",
    title="The norm map of SGD with momentum under gradients of changing size",
    claim="With momentum the squared norm follows its fixed point too, and sooner.",
    judge=_judge_speed,
    show=_show,
    compute=_compute("SGDM"),
    choices=_CHOICES,
)
