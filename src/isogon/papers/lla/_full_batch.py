"""Figure 5: with weight decay, full-batch gradient descent on a scale-invariant loss never settles."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from isogon.papers.lla._judging import panels, too_little_to_judge
from isogon.papers.lla._setup import CHOICES, planned_runs, scheduled_config
from isogon.papers.reproduction import (
    Experiment,
    Gap,
    Judgement,
    Options,
    Planned,
    Scale,
    Verdict,
    combine,
    curves,
    finished_rows,
    worst_verdict,
)
from isogon.report import Exhibit, FigureExhibit, Line
from isogon.theory import maps

#: the toy: rate, decay, two starts at a small loss and a step of 1e-6 apart
TOY_LR, TOY_DECAY, TOY_STARTS, TOY_STEPS = 0.1, 0.5, ((0.1, 1.0), (0.1 + 1e-6, 1.0)), 400
#: train accuracies that count as all right, and as lost again
_ALL, _LOST = 0.999, 0.95
#: scale → images, weight decay, epoch at which it is turned off, length
_SIZES: dict[Scale, tuple[int, float, int, int]] = {
    "paper": (1000, 5e-4, 30_000, 40_000),
    "small": (1000, 2e-3, 3_000, 4_000),
    "tiny": (60, 0.05, 12, 16),
}


def toy(options: Options) -> pd.DataFrame:
    """Gradient descent with weight decay on x²/(x² + y²) from two starts: loss and angle to the line of zero loss."""
    path = maps.heavy_ball(maps.ratio_gradient, TOY_STARTS, lr=TOY_LR, weight_decay=TOY_DECAY, steps=TOY_STEPS)
    runs = []
    for start, name in enumerate(("start 1", "start 2")):
        x, y = path[:, start].T
        place = {"step": range(TOY_STEPS + 1), "x": x, "y": y, "loss": maps.ratio_loss(path[:, start])}
        angle = np.arctan2(abs(x), abs(y))
        runs.append(pd.DataFrame({"panel": "a", "column": name, "seed": 0, **place, "angle": angle}))
    return pd.concat(runs, ignore_index=True)


def plan_full_batch(options: Options) -> list[Planned]:
    """Full batches of 1,000 images at η = 1.6 without momentum; weight decay is turned off late."""
    samples, decay, off, length = _SIZES[options.scale]
    return planned_runs(
        (
            scheduled_config(
                options.scale,
                [(0, 1.6, decay), (off, 1.6, 0.0)],
                epochs=length,
                samples=samples,
                tiny_samples=samples,
                full_batch=True,
                augmentation="none",
                # An epoch is a step here: a file of records for each would be most of the work.
                monitor_every=0,
                seed=seed,
            ),
            {"panel": "bc", "column": "full batch", "seed": seed, "off": off},
        )
        for seed in options.seed_range(1)
    )


def judge_toy(table: pd.DataFrame) -> Judgement:
    """Trajectories that start 1e-6 apart diverge, and the loss rises again and again, which no gradient flow does."""
    angles = table.pivot_table(index="step", columns="column", values="angle")
    if angles.shape[1] < 2 or len(angles) < 10:
        return too_little_to_judge("no two trajectories of the toy")
    apart = (angles.iloc[:, 0] - angles.iloc[:, 1]).abs()
    growth = float(apart.max() / apart.iloc[0]) if apart.iloc[0] > 0 else math.nan
    rises = int((np.diff(table.loc[table["column"] == angles.columns[0], "loss"]) > 0).sum())
    # Nothing here is random, and rounding does not explain a thousandfold growth.
    verdict: Verdict = "holds" if growth > 1e3 and rises else "fails"
    sentence = f"The toy's trajectories part by a factor of {growth:.2g}; the loss rises in {rises} steps."
    return Judgement(verdict, sentence, {"growth of the distance": growth, "steps with rising loss": rises})


def judge_full_batch(table: pd.DataFrame) -> Judgement:
    """All training images right, then lost again, more than once while weight decay is on and never without it."""
    runs = finished_rows(table)
    counts = [_losses(run) for _, run in runs.groupby("seed")] if len(runs) else []
    if not counts or not all(reached for reached, _, _ in counts):
        return too_little_to_judge("no run got all training images right while weight decay was on")
    on, off = (float(np.mean([count[place] for count in counts])) for place in (1, 2))
    noise = float(np.std([count[1] for count in counts])) / math.sqrt(len(counts))
    # Twice or more is "again and again"; once may be an accident.
    verdict = worst_verdict([Gap(on, noise).above(1), "holds" if off == 0 else "fails"])
    if on == 1 and off == 0:
        verdict = "undecided"
    sentence = f"All training images right was lost again {on:g} times with weight decay and {off:g} times without."
    return Judgement(verdict, sentence, {"lost with weight decay": on, "lost without": off})


def _losses(run: pd.DataFrame) -> tuple[bool, int, int]:
    """Whether all were right with weight decay on; how often that was lost with it and, once calm, without."""
    run = run.sort_values("epoch")
    switch = run["off"].iloc[0]
    calm = (switch + run["epoch"].max()) / 2
    with_decay, without = run[run["epoch"] < switch], run[run["epoch"] >= calm]
    return bool((with_decay["train_accuracy"] >= _ALL).any()), _times_lost(with_decay), _times_lost(without)


def _times_lost(rows: pd.DataFrame) -> int:
    times, had = 0, False
    for accuracy in rows["train_accuracy"]:
        if accuracy >= _ALL:
            had = True
        elif had and accuracy < _LOST:
            times, had = times + 1, False
    return times


def judge_figure_5(table: pd.DataFrame) -> Judgement:
    judges = {"a": judge_toy, "bc": judge_full_batch}
    present = {panel: judge for panel, judge in judges.items() if panel in set(table["panel"])}
    return combine(*(judge(table[table["panel"] == panel]) for panel, judge in present.items()))


def show_figure_5(table: pd.DataFrame) -> list[Exhibit]:
    shown: list[Exhibit] = []
    toys, runs = table[table["panel"] == "a"], table[table["panel"] == "bc"]
    if len(toys):
        paths = [Line(str(name), rows["x"].tolist(), rows["y"].tolist()) for name, rows in toys.groupby("column")]
        shown.append(FigureExhibit("Two close starts on x²/(x² + y²)", "x", "y", paths))
    return [*shown, *panels(runs, "Full batch", ("train_accuracy", "test_accuracy"))]


EXPERIMENTS = (
    Experiment(
        id="lla/fig5",
        title="Full-batch gradient descent with weight decay never settles",
        claim="On a toy, close starts part after they come near the origin; a network gets every training image right "
        "again and again and loses it, until weight decay is turned off.",
        compute=toy,
        plan=plan_full_batch,
        keep=curves,
        judge=judge_figure_5,
        show=show_figure_5,
        choices=(
            *CHOICES,
            "The toy starts at (0.1, 1) and 1e-6 beside it, 400 steps. No augmentation; 10,000 epochs without weight "
            "decay. Right is 99.9 % of the training images, lost is below 95 %.",
            "Small scale has four times the weight decay and 4,000 epochs.",
        ),
    ),
)
