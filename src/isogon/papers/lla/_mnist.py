"""Equal in distribution: figures 3 and 9, the predictions of many trials under three schedules."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from isogon import Recipe
from isogon.dynamics import ensembles
from isogon.lab import Config, Run
from isogon.papers.lla._judging import endings, numbers_of, spread, too_little_to_judge
from isogon.papers.lla._setup import planned_runs
from isogon.papers.reproduction import (
    Experiment,
    Gap,
    Judgement,
    Options,
    Planned,
    Scale,
    Verdict,
    combine,
    finished_rows,
    mean_lines,
    points,
    worst_verdict,
)
from isogon.papers.tiny_network import TINY_NETWORK
from isogon.report import Exhibit, FigureExhibit, Line
from isogon.schedules import phases_name

CONST, OTHERS = "Const", ("LR-decay", "WD-decay")
FIXED = "Const, fixed start"
CLASSES = 10
#: scale → epochs of a phase of 40, trials of each schedule, samples, batch size
_SIZES: dict[Scale, tuple[float, int, int, int]] = {
    "paper": (40, 500, 60_000, 128),
    "small": (10, 40, 6_000, 128),
    "tiny": (2 / 3, 2, 160, 20),
}
#: fewer trials than this say nothing about a distribution
_TRIALS = 8
#: errors agree within so much, as a share of the test images
_TOLERANCE = 0.005


def trial(scale: Scale, schedule: str, *, stage: int, seed: int, fixed_start: bool = False) -> Config:
    """One trial: phases of 40 epochs at ηλ = 0.04, 0.02, 0.01 (Const: 0.01 throughout), then η = 0.01 without decay.

    `stage` is the epoch at which it ends at paper scale, 120 or 200.
    """
    unit, _, samples, batch = _SIZES[scale]
    epochs = [epoch / 40 * unit for epoch in (0, 40, 80, 120)]
    lr, decay = ([4, 2, 1] if name == schedule else [1, 1, 1] for name in OTHERS)
    parts = [(epoch, 0.1 * a, 0.1 * b) for epoch, a, b in zip(epochs, lr, decay, strict=False)]
    if stage == 200:
        parts.append((epochs[3], 0.01, 0.0))
    _, first, first_decay = parts[0]
    return Config(
        recipe=Recipe(
            lr=first,
            weight_decay=first_decay,
            momentum=0.0,
            batch_size=batch,
            samples=samples,
            epochs=round(stage / 40 * unit),
        ),
        net=TINY_NETWORK if scale == "tiny" else "cnn4",
        net_options={"width": 2 if scale == "tiny" else 16, "scale_invariant": "plain", "norm": "batch"},
        data="fashion-mini" if scale == "tiny" else "mnist",
        augmentation="none",
        schedule=phases_name(parts),
        seed=seed,
        init_seed=0 if fixed_start else None,
        monitor_every=0,
        save_predictions=True,
        save_weights=False,
    )


def plan_trials(first: str, options: Options) -> list[Planned]:
    """All trials of `first` and of the two schedules that decay, to epoch 120 and to epoch 200."""
    unit, trials, _, _ = _SIZES[options.scale]
    return planned_runs(
        (
            (
                trial(options.scale, schedule, stage=stage, seed=seed, fixed_start=schedule == FIXED),
                {"column": schedule, "stage": stage, "seed": seed, "equal_from": 2 * unit, "fine_from": 3 * unit},
            )
            for schedule in (first, *OTHERS)
            for stage in (120, 200)
            for seed in options.seed_range(trials)
        ),
    )


def keep_trial(run: Run) -> pd.DataFrame:
    """One row per epoch with both errors; the last has the predicted classes of all test images, one digit each."""
    if not len(run.epochs):
        return pd.DataFrame()
    rows = run.epochs[["epoch"]].assign(
        train_error=1 - run.epochs["train_accuracy"],
        test_error=1 - run.epochs["test_accuracy"],
        status=run.status,
        predictions="",
    )
    if run.status == "finished":
        rows.loc[rows.index[-1], "predictions"] = (run.predictions + ord("0")).astype(np.uint8).tobytes().decode()
    return rows


def predictions(table: pd.DataFrame, column: str, stage: int) -> NDArray[np.int64]:
    """(trials, images): what the trials of a schedule predict at a stage."""
    trials = table[(table["column"] == column) & (table["stage"] == stage) & (table["predictions"].str.len() > 0)]
    texts = trials.sort_values("seed")["predictions"]
    return np.array([np.frombuffer(text.encode(), np.uint8) for text in texts], dtype=np.int64) - ord("0")


def variations(table: pd.DataFrame, first: str, other: str, stage: int) -> pd.DataFrame:
    """The total-variation estimate from growing numbers of `trials`."""
    left, right = predictions(table, first, stage), predictions(table, other, stage)
    most = min(len(left), len(right))
    counts = sorted({max(1, round(most / 2**i)) for i in range(6)}) if most else []
    estimates = [ensembles.total_variation(left[:count], right[:count], classes=CLASSES) for count in counts]
    return pd.DataFrame({"trials": counts, "variation": estimates})


def _length(table: pd.DataFrame, stage: int) -> int:
    """The epochs of the runs that end at a `stage`, which has its name from the paper scale."""
    return int(table.loc[table["stage"] == stage, "epoch"].max()) + 1


def _error_sum(table: pd.DataFrame, first: str, other: str, stage: int) -> float:
    """The dashed baseline: `ensembles.error_sum` from the errors, because the rows do not keep the targets."""
    ends = table[(table["stage"] == stage) & (table["predictions"].str.len() > 0)]
    means = ends.groupby("column")["test_error"].mean()
    return float(means.get(first, math.nan) + means.get(other, math.nan))


def judge_variations(first: str, table: pd.DataFrame) -> Judgement:
    """For both pairs and both stages the estimate falls with trials and ends below the sum of errors."""
    runs = finished_rows(table)
    numbers: dict[str, float] = {}
    verdicts: list[Verdict] = []
    phrases: list[str] = []
    if len(runs):
        for stage in (120, 200):
            for other in OTHERS:
                estimates, baseline = variations(runs, first, other, stage), _error_sum(runs, first, other, stage)
                if not len(estimates) or estimates["trials"].iloc[-1] < _TRIALS:
                    verdicts.append("undecided")
                    continue
                last = float(estimates["variation"].iloc[-1])
                noise = _noise(runs, first, other, stage)
                below, fall = Gap(baseline - last, noise), Gap(float(estimates["variation"].iloc[0]) - last, noise)
                # The null: what two halves of one group differ by, each of half as many trials.
                null = ensembles.null_variation(predictions(runs, other, stage), classes=CLASSES)
                verdicts += [below.above(), fall.above()]
                name = f"{other}, epoch {_length(runs, stage)}"
                numbers |= {name: last, f"{name}, sum of errors": baseline, f"{name}, null of half the trials": null}
                phrases.append(f"{last:.4f} against {baseline:.4f} ({name})")
    if not phrases:
        return too_little_to_judge(f"fewer than {_TRIALS} trials of a schedule")
    return Judgement(
        worst_verdict(verdicts), f"Total variation against the sum of errors: {'; '.join(phrases)}.", numbers
    )


def _noise(table: pd.DataFrame, first: str, other: str, stage: int) -> float:
    """The standard error of the estimate, from its values in four parts of the trials."""
    left, right = predictions(table, first, stage), predictions(table, other, stage)
    most = min(len(left), len(right))
    parts = [slice(start, most, 4) for start in range(4)]
    values = [ensembles.total_variation(left[part], right[part], classes=CLASSES) for part in parts]
    return float(np.std(values, ddof=1) / 2)


def judge_errors(table: pd.DataFrame) -> Judgement:
    """The mean errors of the schedules agree from epoch 81 on: in the second half of 81 … 120, and at the end."""
    runs = finished_rows(table)
    runs = runs[runs["stage"] == 200] if len(runs) else runs
    if not len(runs) or runs["column"].nunique() < 2 or runs["seed"].nunique() < 3:
        return too_little_to_judge("fewer than two schedules or three trials")
    middle = np.floor((runs["equal_from"] + runs["fine_from"]) / 2)
    settled = runs[(runs["epoch"] >= middle) & (runs["epoch"] < runs["fine_from"])]
    gaps = {
        f"{error.replace('_', ' ')} {when}": spread(rows, error)
        for error in ("train_error", "test_error")
        for when, rows in (("in equilibrium", settled), ("at the end", endings(runs)))
    }
    spans = ", ".join(f"{name} {points(gap)}" for name, gap in gaps.items())
    verdict = worst_verdict(gap.within(_TOLERANCE) for gap in gaps.values())
    return Judgement(verdict, f"The schedules span: {spans}.", numbers_of(gaps))


def judge_figure_3(table: pd.DataFrame) -> Judgement:
    return combine(judge_errors(table), judge_variations(CONST, table))


def show_variations(first: str, table: pd.DataFrame) -> list[Exhibit]:
    shown: list[Exhibit] = []
    for stage in sorted(set(table["stage"])):
        curves = []
        for other in OTHERS:
            estimates = variations(table, first, other, stage)
            x, y = estimates["trials"].tolist(), estimates["variation"].tolist()
            curves.append(Line(f"{first} against {other}", x, y))
            baseline = _error_sum(table, first, other, stage)
            curves.append(Line(f"sum of errors, {other}", x, [baseline] * len(x), dashed=True))
        title = f"Predictions at epoch {_length(table, stage)}"
        shown.append(FigureExhibit(title, "trials", "total variation", curves, log_x=True, log_y=True))
    return shown


def show_figure_3(table: pd.DataFrame) -> list[Exhibit]:
    whole = table[table["stage"] == 200]
    curves: list[Exhibit] = [
        FigureExhibit(
            f"{name.capitalize()}, mean over trials", "epoch", name, mean_lines(whole, "epoch", quantity, by="column")
        )
        for quantity, name in (("train_error", "train error"), ("test_error", "test error"))
    ]
    return [*curves, *show_variations(CONST, table)]


_OPEN = (
    "Batch size and widths are not printed: batches of 128, 16, 32 and 64 channels; no momentum, no augmentation.",
    "Predictions at epoch 120 (small: 30) come from runs that end there, with the seeds of the longer ones.",
    "Small scale: 40 trials on 6,000 images, a quarter of the epochs. Tiny: 2 trials on 160 images of "
    "fashion-mini averaged to 7×7 pixels.",
)

EXPERIMENTS = (
    Experiment(
        id="lla/fig3",
        title="MNIST: three schedules, errors and total variation of predictions",
        claim="Once learning rate and weight decay are equal, errors of the three schedules are the same, also in "
        "fine-tuning; the total variation of predictions falls with more trials and lies below the sum of errors.",
        plan=partial(plan_trials, CONST),
        keep=keep_trial,
        judge=judge_figure_3,
        show=show_figure_3,
        choices=_OPEN,
    ),
    Experiment(
        id="lla/fig9",
        title="MNIST: total variation when one schedule starts at a fixed point",
        claim="Noise of the batches alone mixes: with one fixed start the total variation still falls with more trials "
        "and lies below the sum of errors.",
        plan=partial(plan_trials, FIXED),
        keep=keep_trial,
        judge=partial(judge_variations, FIXED),
        show=partial(show_variations, FIXED),
        choices=(
            *_OPEN,
            "Only Const starts at the fixed point; the runs of the other schedules are those of figure 3.",
        ),
    ),
)
