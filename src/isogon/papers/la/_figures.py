"""Li and Arora, "An Exponential Learning Rate Schedule for Deep Learning": figures 1 to 6, section 3, appendix E."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from isogon.lab import Config, Run
from isogon.papers.la._curves import TOLERANCE, accuracy_figures, figure, gap, judge_better_end, judge_same_curves
from isogon.papers.la._degrees import DEGREES
from isogon.papers.la._toy import TOY
from isogon.papers.reproduction import (
    Experiment,
    Judgement,
    Options,
    Planned,
    Scale,
    combine,
    curves,
    points,
    worst_verdict,
)
from isogon.papers.tiny_network import TINY_NETWORK
from isogon.recipe import Recipe
from isogon.report import Exhibit
from isogon.schedules import from_name, phases_name

#: the first convolution of the second residual block, of which figure 1 shows the norm
SECOND_BLOCK = "body.0.1.main.0.conv.weight"
#: figure 1: ‖w‖²/η is steady when its largest value over the second half of the run is at most so many times its least
STEADY = 1.25


@dataclass(frozen=True)
class FigureSetup:
    """One scale: the run under Step Decay, its drops (epochs), and how many seeds."""

    recipe: Recipe
    drops: tuple[int, int]
    seeds: int
    options: Mapping[str, Any]

    def config(self, schedule: str, seed: int) -> Config:
        return Config(recipe=self.recipe, schedule=schedule, seed=seed, save_weights=False, **self.options)


_PLAIN = {"scale_invariant": "plain", "norm": "batch"}
_CIFAR = {"net": "preresnet32", "net_options": _PLAIN, "data": "cifar10", "monitor_every": 50}
#: the network and images at `tiny`
TINY = {
    "net": TINY_NETWORK,
    "net_options": {**_PLAIN, "width": 4},
    "data": "fashion-mini",
    "augmentation": "none",
    "monitor_every": 5,
}
SETUPS: dict[Scale, FigureSetup] = {
    # Weight decay is low enough that running statistics of batch norm, a mean over some ten steps, keep up with weights
    # that grow by x' = ηλ/(1−μ) a step.
    "tiny": FigureSetup(Recipe(lr=0.1, weight_decay=0.005, batch_size=20, samples=200, epochs=5), (2, 4), 2, TINY),
    "small": FigureSetup(
        Recipe(lr=0.1, weight_decay=5e-4, batch_size=128, samples=50_000, epochs=60),
        (30, 45),
        3,
        {**_CIFAR, "precision": "bfloat16"},
    ),
    "paper": FigureSetup(
        Recipe(lr=0.1, weight_decay=5e-4, batch_size=128, samples=50_000, epochs=160), (80, 120), 3, _CIFAR
    ),
}

CONSTANT, EXPONENTIAL, DROPPED = "fixed LR + WD", "exponential LR", "exponential LR with drops"
STEP, TEXP, TEXP_MINUS = "Step Decay + WD", "TEXP", "TEXP--"
COSINE, EXP_COSINE, DECAY_DROP = "Cosine + WD", "exponential Cosine", "fixed LR, WD drops"

_CHOICES = (
    "weight decay 5e-4 and batch size 128, which the growth of 1.481 an epoch in figure 1 implies",
    "160 epochs, drops at 80 and 120; width 16; padding, crop and flip; three seeds (the paper shows single runs)",
    "the momentum correction at a phase's start is made (the paper leaves it out, and says that it hardly matters)",
    f"curves are the same when they differ by at most {100 * TOLERANCE:g} points of training accuracy along the run",
    "small: 60 epochs, drops at 30 and 45, bfloat16",
    "tiny: a network of three convolutions on 200 images of fashion-mini averaged to 7×7 pixels, not augmented, weight "
    "decay 0.005, batches of 20, 5 epochs, drops at 2 and 4, two seeds",
)


def _schedules(setup: FigureSetup) -> dict[str, str]:
    """The lab's names of the schedules."""
    first, second = setup.drops
    lr, decay = setup.recipe.lr, setup.recipe.weight_decay
    step = f"lr_{first}_{second}"
    # The growth of an exponential rate follows from η·λ alone, so λ grows where η drops.
    drops = phases_name([(0, lr, decay), (first, lr / 10, decay * 10), (second, lr / 100, decay * 100)])
    return {
        CONSTANT: "constant",
        EXPONENTIAL: "exp(constant)",
        DROPPED: f"texp({drops})",
        STEP: step,
        TEXP: f"texp({step})",
        TEXP_MINUS: f"texp_minus({step})",
        COSINE: "cosine",
        EXP_COSINE: "texp_plus(cosine)",
        DECAY_DROP: f"wd_{first}_{second}",
    }


def _plan(*rows: str) -> Callable[[Options], Sequence[Planned]]:
    def plan(options: Options) -> list[Planned]:
        setup = SETUPS[options.scale]
        names = _schedules(setup)
        seeds = options.seed_range(setup.seeds)
        return [Planned(setup.config(names[row], seed), {"row": row, "seed": seed}) for row in rows for seed in seeds]

    return plan


def _keep(run: Run) -> pd.DataFrame:
    """The curves, with ln η for the weights as large as the schedule makes them: the lab sometimes halves them."""
    layers = set(run.records["layer"]) if len(run.epochs) else set()
    rows = curves(run, SECOND_BLOCK if SECOND_BLOCK in layers else "all")
    if not len(rows):
        return rows
    config = run.config
    schedule: Any = from_name(
        config.schedule, config.recipe, epochs=config.epochs, steps_per_epoch=config.steps_per_epoch
    )
    last_steps = (rows["epoch"].to_numpy() + 1) * config.steps_per_epoch - 1
    with np.errstate(divide="ignore"):
        logs = schedule.log_lr(last_steps) if hasattr(schedule, "log_lr") else np.log(schedule.lr(last_steps))
    # ‖w‖ = √(η/η_eff); its logarithm, because ‖w‖ leaves the range of floats.
    return rows.assign(log_lr=logs, log_norm=(logs - np.log(rows["effective_lr"])) / 2)


def _judge_steady_ratio(table: pd.DataFrame) -> Judgement:
    """Figure 1's right panel: η grows without bound, η/‖w‖² does not."""
    rows = table[(table["row"] == EXPONENTIAL) & (table["status"] == "finished")]
    late = rows[rows["epoch"] >= rows["epoch"].max() / 2].groupby("epoch")[["effective_lr", "log_lr"]].mean()
    if len(late) < 3:
        return Judgement("undecided", "too few epochs to see whether ‖w‖²/η is steady")
    spread = float(late["effective_lr"].max() / late["effective_lr"].min())
    growth = float(late["log_lr"].iloc[-1] - late["log_lr"].iloc[0]) / math.log(10)
    verdict = worst_verdict(["holds" if spread <= STEADY else "fails" if spread > 2 * STEADY else "undecided"])
    sentence = f"over the second half η grows by 10^{growth:.1f} and ‖w‖²/η varies by a factor of {spread:.2f}"
    return Judgement(verdict, sentence, {"‖w‖²/η: largest over least": spread, "growth of η, powers of 10": growth})


def _judge_short_lead(table: pd.DataFrame) -> Judgement:
    """Figure 4: above the undropped run right after a drop, with it again in the last third of the phase."""
    lr = table[table["row"] == DROPPED].groupby("epoch")["log_lr"].mean()
    drops = [int(epoch) for epoch in lr.index[1:] if lr[epoch] < lr[epoch - 1]]
    if not drops:
        return Judgement("undecided", "no drop has been reached")
    ends = [*drops[1:], int(table["epoch"].max()) + 1]
    parts = []
    for drop, end in zip(drops, ends, strict=True):
        right_after = gap(table, DROPPED, EXPONENTIAL, "test_accuracy", (drop, drop + 1))
        later = gap(table, DROPPED, EXPONENTIAL, "train_accuracy", (end - max(1, (end - drop) // 3), end))
        sentence = (
            f"after the drop at epoch {drop} the run is {points(right_after)} ahead for an epoch, and "
            f"{points(later)} at the phase's end"
        )
        numbers = {f"epoch {drop}: first": right_after.size, f"epoch {drop}: later": later.size}
        parts.append(Judgement(worst_verdict([right_after.above(), later.within(TOLERANCE)]), sentence, numbers))
    return combine(*parts)


def _rate_figures(table: pd.DataFrame) -> list[Exhibit]:
    return [
        *accuracy_figures(table),
        figure(table, "log_norm", "ln ‖w‖"),
        figure(table, "effective_lr", "effective learning rate η/‖w‖²", log_y=True),
    ]


def _experiment(
    id: str, title: str, claim: str, rows: Sequence[str], judge: Callable[[pd.DataFrame], Judgement]
) -> Experiment:
    return Experiment(
        id=id, title=title, claim=claim, plan=_plan(*rows), keep=_keep, judge=judge, show=_rate_figures,
        choices=_CHOICES,
    )  # fmt: skip


EXPERIMENTS: tuple[Experiment, ...] = (
    _experiment(
        "la/fig1",
        "An exponentially growing learning rate in place of weight decay",
        "A rate that grows by a constant factor learns like a fixed one with weight decay; ‖w‖²/η stays constant.",
        (CONSTANT, EXPONENTIAL),
        lambda table: combine(judge_same_curves(table, EXPONENTIAL, CONSTANT, ends=False), _judge_steady_ratio(table)),
    ),
    _experiment(
        "la/fig2",
        "Step Decay with weight decay against TEXP without",
        "The tapered exponential schedule follows the trajectory of Step Decay and ends as well.",
        (STEP, TEXP),
        lambda table: combine(judge_same_curves(table, TEXP, STEP)),
    ),
    _experiment(
        "la/fig3",
        "TEXP with and without the instant drops of the rate",
        "Without the drops the last phase grows too slowly to catch up: TEXP ends better.",
        (TEXP, TEXP_MINUS),
        lambda table: combine(judge_better_end(table, TEXP, TEXP_MINUS)),
    ),
    _experiment(
        "la/fig4",
        "A drop of the rate under fast growth",
        "While the rate grows fast, dividing it by 10 helps for a moment and is forgotten.",
        (EXPONENTIAL, DROPPED),
        _judge_short_lead,
    ),
    _experiment(
        "la/fig5",
        "Cosine and Step Decay with their exponential forms",
        "Each schedule learns like its exponential form, and the cosine ones end better.",
        (STEP, TEXP, COSINE, EXP_COSINE),
        lambda table: combine(
            judge_same_curves(table, EXP_COSINE, COSINE),
            judge_same_curves(table, TEXP, STEP),
            judge_better_end(table, COSINE, STEP),
        ),
    ),
    _experiment(
        "la/fig6",
        "Dropping the weight decay against TEXP--",
        "A fixed rate whose weight decay is divided by 10 learns like Step Decay's TEXP without its drops.",
        (DECAY_DROP, TEXP_MINUS),
        lambda table: combine(judge_same_curves(table, TEXP_MINUS, DECAY_DROP)),
    ),
    TOY,
    DEGREES,
)
