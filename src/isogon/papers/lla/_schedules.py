"""Equilibrium forgets the schedule: table 1, figures 1, 12, 13 (five random schedules) and 4 (rate against decay)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from operator import mul

import numpy as np
import pandas as pd

from isogon.lab import Config
from isogon.papers._printed import other_table
from isogon.papers.lla._judging import (
    ACCURACY_TOLERANCE,
    RATE_TOLERANCE,
    endings,
    lead,
    numbers_of,
    panels,
    spread,
    too_little_to_judge,
)
from isogon.papers.lla._setup import CHOICES, LR, WEIGHT_DECAY, decay_of, planned_runs, scheduled_config
from isogon.papers.reproduction import (
    Experiment,
    Gap,
    Judgement,
    Options,
    Planned,
    Scale,
    curves,
    finished_rows,
    points,
    worst_verdict,
)
from isogon.report import Cell, Exhibit, Place, TableExhibit
from isogon.schedules import Schedule, from_name

Parts = list[tuple[float, float, float]]

#: table 1: what the learning rate and the weight decay are multiplied by at the epochs 0, 100, 200, 300, 400, 500
OPERATIONS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "Schedule_1": ((1, 1 / 4, 4, 1 / 4, 2, 2), (1, 1, 1, 1, 1, 1)),
    "Schedule_2": ((1, 1, 1, 1, 1, 1), (1, 1, 1, 1, 1, 1)),
    "Schedule_3": ((1, 4, 1 / 2, 1 / 2, 1 / 4, 4), (1, 1, 1, 1, 1, 1)),
    "Schedule_4": ((1, 4, 1 / 2, 1 / 2, 1 / 4, 4), (1, 4, 1 / 2, 1 / 2, 1 / 4, 4)),
    "Schedule_5": ((32, 1 / 2, 1 / 2, 1 / 2, 1 / 2, 1 / 2), (1, 1, 1, 1, 1, 1)),
}
#: epochs between two operations; the rate is divided by 10 and weight decay removed after ten times as many
UNIT: dict[Scale, float] = {"paper": 100, "small": 10, "tiny": 0.6}
#: length of a run in these units; the paper does not give the time after the last operation
LENGTH = 12
#: figure 4: halvings, and the epoch at which weight decay goes, in units of UNIT
HALVINGS, END, AFTER = (2, 4, 6, 8, 12, 20, 40), 80, 90
#: the same for runs too short for it: tiny, and small with a twentieth of the epochs
_FIGURE_4: dict[Scale, tuple[tuple[float, ...], int, int]] = {
    "paper": (tuple(100 * epoch for epoch in HALVINGS), 100 * END, 100 * AFTER),
    "small": (tuple(5 * epoch for epoch in HALVINGS), 5 * END, 5 * AFTER),
    "tiny": ((0.5, 1, 1.5, 2, 4), 8, 10),
}


def random_schedule(name: str, unit: float, weight_decay: float = WEIGHT_DECAY) -> Parts:
    """A column of table 1 as (epoch, η, λ) with `unit` for its 100 epochs."""
    lrs, decays = (list(accumulate(factors, mul)) for factors in OPERATIONS[name])
    parts = [(i * unit, LR * lr, weight_decay * decay) for i, (lr, decay) in enumerate(zip(lrs, decays, strict=True))]
    return [*parts, (10 * unit, LR / 10, 0.0)]


def plan_random(net: str, data: str, options: Options) -> list[Planned]:
    """Five schedules; three seeds at small scale, which tell noise from difference."""
    scale, unit = options.scale, UNIT[options.scale]
    return planned_runs(
        (
            (
                scheduled_config(
                    scale,
                    random_schedule(name, unit, decay_of(scale)),
                    epochs=round(LENGTH * unit),
                    net=net,
                    data=data,
                    seed=seed,
                    tiny_samples=300,
                ),
                {"column": name, "seed": seed, "switch": 5 * unit, "decay": 10 * unit},
            )
            for name in OPERATIONS
            for seed in options.seed_range(3 if scale == "small" else 1)
        ),
    )


def judge_merged(table: pd.DataFrame) -> Judgement:
    """Accuracy and effective rate of the schedules agree in the second half of their common phase, and at the end."""
    runs = finished_rows(table)
    if not len(runs) or runs["column"].nunique() < 2:
        return too_little_to_judge("fewer than two schedules finished")
    runs = runs.assign(log_rate=np.log(runs["effective_lr"]))
    apart = runs[runs["epoch"] == runs["switch"] - 1]
    half = np.floor((runs["switch"] + runs["decay"]) / 2)
    settled = runs[(runs["epoch"] >= half) & (runs["epoch"] < runs["decay"])]
    gaps = {
        "test accuracy after the switch": spread(settled, "test_accuracy"),
        "log effective rate after the switch": spread(settled, "log_rate"),
        "test accuracy at the end": spread(endings(runs), "test_accuracy"),
    }
    before, after = spread(apart, "log_rate").size, spread(endings(runs), "log_rate").size
    accuracy, rate, end = gaps.values()
    verdict = worst_verdict(
        [accuracy.within(ACCURACY_TOLERANCE), rate.within(RATE_TOLERANCE), end.within(ACCURACY_TOLERANCE)]
    )
    sentence = (
        f"After the switch the {runs['column'].nunique()} schedules span {points(accuracy)} of test accuracy and a "
        f"factor of {np.exp(rate.size):.3f} in effective rate ({np.exp(before):.2f} before); at the end {points(end)} "
        f"and {np.exp(after):.3f}."
    )
    numbers = {
        **numbers_of(gaps),
        "log effective rate before the switch": before,
        "log effective rate at the end": after,
    }
    return Judgement(verdict, sentence, numbers)


def table_of_schedules(options: Options) -> pd.DataFrame:
    """Table 1 as the lab's schedules have it: η and λ right from each of its epochs on."""
    rows = []
    for name in OPERATIONS:
        if options.columns is not None and name not in options.columns:
            continue
        made = scheduled_config("paper", random_schedule(name, 100), epochs=LENGTH * 100)
        schedule = _schedule(made)
        for epoch in (*range(0, 600, 100), 1000):
            step = epoch * made.steps_per_epoch
            rows.append(
                {"column": name, "epoch": epoch, "lr": float(schedule.lr(step))}
                | {"weight_decay": float(schedule.weight_decay(step))}
            )
    table = pd.DataFrame(rows)
    return table.assign(intrinsic_lr=table["lr"] * table["weight_decay"])


def judge_schedules(table: pd.DataFrame) -> Judgement:
    """All have one η and one λ from epoch 500 on, not before; both are as printed, and λ = 0 in the end."""
    if not len(table) or table["column"].nunique() < 2:
        return too_little_to_judge("fewer than two schedules")
    by_epoch = table.groupby("epoch")[["lr", "weight_decay"]].agg(np.ptp).sum(axis=1)
    common = table[table["epoch"] == 500]
    as_printed = np.allclose(common["lr"], LR) and np.allclose(common["weight_decay"], WEIGHT_DECAY)
    merged = bool((by_epoch[by_epoch.index >= 500] < 1e-12).all()) and bool((by_epoch[by_epoch.index < 500] > 0).all())
    without = bool((table.loc[table["epoch"] == 1000, "weight_decay"] == 0).all())
    holds = as_printed and merged and without
    largest = float(table["lr"].max())
    sentence = (
        f"{'All' if holds else 'Not all'} schedules come to ηλ = 2e-4 at epoch 500; the largest η is {largest:g}."
    )
    return Judgement("holds" if holds else "fails", sentence, {"largest learning rate": largest})


def show_schedules(table: pd.DataFrame) -> list[Exhibit]:
    shown = {(str(epoch), column) for epoch, column in zip(table["epoch"], table["column"], strict=True)}
    names = {"lr": "learning rate", "weight_decay": "weight decay", "intrinsic_lr": "intrinsic learning rate ηλ"}
    return [
        TableExhibit(
            title=f"Five random schedules: {name}",
            row_name="epoch",
            column_name="schedule",
            rows=[str(epoch) for epoch in sorted(table["epoch"].unique())],
            columns=list(table["column"].unique()),
            ours={
                (str(epoch), column): Cell(mean=value, spread=float("nan"), survived=1, runs=1)
                for epoch, column, value in zip(table["epoch"], table["column"], table[quantity], strict=True)
            },
            printed={place: value for place, value in _printed_values(quantity).items() if place in shown},
            digits=7,
            best=None,
        )
        for quantity, name in names.items()
    ]


def _printed_values(quantity: str) -> dict[Place, float]:
    """What follows from the operations that the paper prints."""
    table = other_table("lla", 1)
    epochs = table["column"].str.removeprefix("epoch ")
    return dict(zip(zip(epochs, table["row"], strict=True), table[quantity], strict=True))


def plan_halvings(options: Options) -> list[Planned]:
    """Two networks from η = 3.2, λ = 5e-4: one halves η, the other λ, at the same epochs."""
    scale = options.scale
    epochs, end, length = _FIGURE_4[scale]
    lr, decay = 1.6 if scale == "tiny" else 3.2, decay_of(scale)

    def parts(halve_lr: bool) -> Parts:
        halved = [(epoch, 0.5**i) for i, epoch in enumerate((0, *epochs))]
        rows = [(e, lr * part, decay) if halve_lr else (e, lr, decay * part) for e, part in halved]
        return [*rows, (end, rows[-1][1] / 10, 0.0)]

    return planned_runs(
        (
            (
                scheduled_config(scale, parts(halve_lr), epochs=length, seed=seed),
                {"column": name, "seed": seed, "end": end},
            )
            for name, halve_lr in (("LR halved", True), ("WD halved", False))
            for seed in options.seed_range(1)
        ),
    )


def judge_halvings(table: pd.DataFrame) -> Judgement:
    """Effective rates and accuracies agree for most of the time, and both runs are best after weight decay is gone."""
    runs = finished_rows(table)
    if not len(runs) or runs["column"].nunique() < 2:
        return too_little_to_judge("not both schedules finished")
    runs = runs.assign(log_rate=np.log(runs["effective_lr"]))
    means = runs[runs["epoch"] < runs["end"]].groupby(["epoch", "column"])[["log_rate", "test_accuracy"]].mean()
    differences = means.unstack("column").T.groupby(level=0).agg(np.ptp).T.dropna()
    if len(differences) < 8:
        return too_little_to_judge("fewer than 8 epochs")
    # Most of the time: the median, and as its error what half the epochs say against the other half.
    rate, accuracy = (_median(differences[name]) for name in ("log_rate", "test_accuracy"))
    best = runs.loc[runs.groupby(["column", "seed"])["test_accuracy"].idxmax()]
    late = float((best["epoch"] >= best["end"]).mean())
    end = lead(endings(runs), "LR halved", "WD halved", "test_accuracy")
    verdict = worst_verdict(
        [
            rate.within(RATE_TOLERANCE),
            accuracy.within(2 * ACCURACY_TOLERANCE),
            end.within(ACCURACY_TOLERANCE),
            "holds" if late == 1 else "fails",
        ]
    )
    sentence = (
        f"In the median epoch effective rates differ by {100 * np.expm1(rate.size):.1f} % and test accuracies by "
        f"{points(accuracy)}; {100 * late:.0f} % of the runs are best after weight decay is gone, where they differ by "
        f"{points(end)}."
    )
    gaps = {"log effective rate, median": rate, "test accuracy, median": accuracy, "test accuracy at the end": end}
    return Judgement(verdict, sentence, {**numbers_of(gaps), "best after the end": late})


def _median(values: pd.Series[float]) -> Gap:
    halves = [float(values.iloc[start::2].median()) for start in (0, 1)]
    return Gap(float(values.median()), abs(halves[0] - halves[1]) / 2)


def _schedule(made: Config) -> Schedule:
    return from_name(made.schedule, made.recipe, epochs=made.epochs, steps_per_epoch=made.steps_per_epoch)


def _show_panels(title: str) -> Callable[[pd.DataFrame], Sequence[Exhibit]]:
    return lambda table: panels(table, title)


def _merging_experiment(number: int, net: str, title: str, data: str, accuracy: int) -> Experiment:
    return Experiment(
        id=f"lla/fig{number}",
        title=f"{title} under five random schedules",
        claim="After all five schedules switch to the same learning rate and weight decay, accuracies and effective "
        f"rates agree within noise; with the rate divided by 10 and no weight decay all come to about {accuracy} %.",
        plan=partial(plan_random, net, data),
        keep=curves,
        judge=judge_merged,
        show=_show_panels(title),
        choices=(
            *CHOICES,
            "Training continues for 200 epochs after the last operation. Agreement is a point of accuracy or 10 % of "
            "the effective rate, two standard errors allowed for.",
            "Small scale has a tenth of the epochs and three seeds.",
        ),
    )


EXPERIMENTS = (
    Experiment(
        id="lla/table1",
        title="Five random schedules of learning rate and weight decay",
        claim="The five differ until epoch 500, where all have η = 0.4 and λ = 5e-4; weight decay ends at 1000.",
        compute=table_of_schedules,
        judge=judge_schedules,
        show=show_schedules,
        choices=("Schedule_5 begins at η = 12.8, since its first operation comes at epoch 0.",),
    ),
    _merging_experiment(1, "preresnet32", "PreResNet32 on CIFAR-10", "cifar10", 95),
    Experiment(
        id="lla/fig4",
        title="Halving the learning rate against halving weight decay",
        claim="Two networks with equal products of rate and decay share effective rate and accuracy most of the time, "
        "and both are best once weight decay is removed and the rate divided by 10.",
        plan=plan_halvings,
        keep=curves,
        judge=judge_halvings,
        show=_show_panels("PreResNet32 on CIFAR-10"),
        choices=(
            *CHOICES,
            "Training continues for 1,000 epochs after epoch 8,000. Small scale has a twentieth of the epochs.",
        ),
    ),
    _merging_experiment(12, "vgg16", "VGG16 on CIFAR-10", "cifar10", 94),
    _merging_experiment(13, "preresnet32", "PreResNet32 on CIFAR-100", "cifar100", 78),
)
