"""Wan et al.'s figures 7 and 8: k small steps against one large step under the linear scaling rule.

The angle over k steps is none of what the lab's monitor records, so the lab's trial is stepped here.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import pandas as pd
from torch import Tensor
from torch.nn.functional import cross_entropy

from isogon.dynamics.measures import angle, gradient_norm_ratio, summed_gradient
from isogon.lab import Config
from isogon.lab.training import default_device
from isogon.lab.trial import Trial
from isogon.papers import imagenet
from isogon.papers.experiment import Experiment, Judgement, Options, Scale
from isogon.papers.gaps import Gap, mean_of, together
from isogon.papers.smd_motion import FIRST_STAGE
from isogon.papers.smd_settings import CIFAR, IMAGENET, TINY
from isogon.recipe import Recipe
from isogon.report.exhibits import Exhibit, FigureExhibit, Line
from isogon.theory.motion import law

#: panel → k, the large batch over the small one
PANELS = {"a": 4, "b": 16}
MANY, ONE, SMALL = "k small steps", "one large step", "one small step"
#: figure 7: much larger means by more than a fifth
MUCH = 1.2
#: figure 8: the angle grows as √k within this share
TOLERANCE = 0.15


@dataclass(frozen=True)
class Setting:
    """The run at the small batch; those at k times the batch have k times the rate."""

    recipe: Recipe
    layer: str
    options: Mapping[str, Any]

    def config(self, k: int, seed: int) -> Config:
        recipe = replace(self.recipe, batch_size=self.recipe.batch_size * k, lr=self.recipe.lr * k)
        return Config(recipe=recipe, seed=seed, monitor_every=0, save_weights=False, **self.options)


SETTINGS: dict[Scale, Setting] = {
    "tiny": Setting(
        Recipe(lr=0.01, weight_decay=0.05, batch_size=10, samples=320, epochs=3),
        "body.1.conv.weight",
        {**TINY, "schedule": "constant"},
    ),
    "small": Setting(
        Recipe(lr=0.05, weight_decay=5e-4, batch_size=64, samples=50_000, epochs=30),
        FIRST_STAGE,
        {**CIFAR, "schedule": "lr_10_20_27"},
    ),
    "paper": Setting(
        Recipe(lr=0.1, weight_decay=1e-4, batch_size=256, samples=imagenet.SAMPLES, epochs=90),
        FIRST_STAGE,
        {**IMAGENET, "schedule": "lr_30_60_80"},
    ),
}


def trained(config: Config, layer: str, lags: Sequence[int], *, ratios: bool) -> pd.DataFrame:
    """A row an epoch: root mean square angle of `layer` over each of `lags` steps, and growths of the gradient."""
    trial = Trial(config, device=default_device())
    weight = dict(trial.model.named_parameters())[layer]
    rows = []
    while not trial.ended:
        trial.begin_epoch()
        squares: dict[int, list[float]] = {lag: [] for lag in lags}
        before = {lag: weight.detach().clone() for lag in lags}
        for step, batch in enumerate(trial.batches(), start=1):
            trial.backward(*batch)
            trial.step()
            for lag in lags:
                if step % lag == 0:
                    squares[lag].append(angle(before[lag], weight) ** 2)
                    before[lag] = weight.detach().clone()
        row: dict[str, float] = {f"angle_{lag}": math.sqrt(sum(s) / len(s)) for lag, s in squares.items() if s}
        if ratios:
            row |= {f"gradient_{lag}": _gradient_growth(trial, layer, lag) for lag in lags if lag > 1}
        trial.end_epoch()
        rows.append({"epoch": trial.epoch - 1, **row})
    trial.close()
    return pd.DataFrame(rows).assign(status="diverged" if trial.diverged else "finished")


def _gradient_growth(trial: Trial, layer: str, k: int) -> float:
    """‖g(kB)‖/‖g(B)‖ of `layer`, gradients summed over samples, at the present weights."""
    model = copy.deepcopy(trial.model)  # running statistics stay what they were
    weight = dict(model.named_parameters())[layer]

    def loss(inputs: Tensor, labels: Tensor) -> Tensor:
        outputs: Tensor = model(inputs)
        return cross_entropy(outputs, labels)

    def summed(batches: Iterable[tuple[Tensor, Tensor]]) -> list[Tensor]:
        return summed_gradient([weight], loss, batches)

    batches = [batch for _, batch in zip(range(k), trial.batches(), strict=False)]
    if len(batches) < k:
        return math.nan
    return gradient_norm_ratio(summed(batches), summed(batches[:1]))


@lru_cache(maxsize=4)
def _measured(setting_of: Scale, seeds: range) -> pd.DataFrame:
    """All runs of a scale, which both figures read."""
    setting = SETTINGS[setting_of]
    tables = []
    for seed in seeds:
        small = trained(setting.config(1, seed), setting.layer, (1, *PANELS.values()), ratios=True)
        for panel, k in PANELS.items():
            large = trained(setting.config(k, seed), setting.layer, (1,), ratios=False)
            labels: dict[str, Any] = {"panel": panel, "k": k, "seed": seed}
            many = small[["epoch", "status"]].assign(angle=small[f"angle_{k}"], gradient=small[f"gradient_{k}"])
            one_small = small[["epoch", "status"]].assign(angle=small["angle_1"])
            one_large = large[["epoch", "status"]].assign(angle=large["angle_1"])
            tables += [
                part.assign(row=row, predicted=_law(setting.recipe, k, row), **labels)
                for row, part in ((MANY, many), (SMALL, one_small), (ONE, one_large))
            ]
    return pd.concat(tables, ignore_index=True)


def _law(recipe: Recipe, k: int, row: str) -> float:
    """The equilibrium's angle before the first drop."""
    lr = recipe.lr * (k if row == ONE else 1)
    motion = law("sgd", lr=lr, weight_decay=recipe.weight_decay, momentum=recipe.momentum)
    return float(motion.angle(k if row == MANY else 1))


def _compute(options: Options) -> pd.DataFrame:
    return _measured(options.scale, options.seed_range(1))


def _ratio(table: pd.DataFrame, panel: str, first: str, second: str) -> Gap:
    """The mean over the second half of the epochs and all seeds of `first` over `second`, and its standard error."""
    rows = table[(table["panel"] == panel) & (table["status"] == "finished")]
    sides = rows[rows["epoch"] >= rows["epoch"].max() / 2].set_index(["seed", "epoch"])
    own = (sides[sides["row"] == first]["angle"] / sides[sides["row"] == second]["angle"]).dropna()
    return mean_of(own)


def _judge_7(table: pd.DataFrame) -> Judgement:
    parts = []
    for panel, k in PANELS.items():
        found = _ratio(table, panel, MANY, ONE)
        sentence = f"{k} small steps turn the weights {found.size:.2f} ± {found.error:.2f} times as far as a large one"
        parts.append(Judgement(found.above(MUCH), sentence, {f"k = {k}: ratio of angles": found.size}))
    return together(*parts)


def _judge_8(table: pd.DataFrame) -> Judgement:
    parts = []
    for panel, k in PANELS.items():
        found, root = _ratio(table, panel, ONE, SMALL), math.sqrt(k)
        gradient = float(table[(table["panel"] == panel) & (table["row"] == MANY)]["gradient"].mean())
        off = Gap(found.size / root - 1, found.error / root, found.freedom)
        sentence = (
            f"at {k} times batch and rate a step's angle grows {found.size:.2f} ± {found.error:.2f} times "
            f"(√k = {root:g}), the summed gradient {gradient:.2f} times"
        )
        numbers = {f"k = {k}: growth of the angle": found.size, f"k = {k}: growth of the gradient": gradient}
        parts.append(Judgement(off.within(TOLERANCE), sentence, numbers))
    return together(*parts)


def _show_7(table: pd.DataFrame) -> Sequence[Exhibit]:
    return [
        FigureExhibit(_title(panel), "epoch", "angle (rad)", _lines(rows, (MANY, ONE)), log_y=True)
        for panel, rows in table.groupby("panel")
    ]


def _title(panel: object) -> str:
    return f"({panel}) k = {PANELS[str(panel)]}"


def _lines(rows: pd.DataFrame, names: Sequence[str]) -> list[Line]:
    lines = []
    for name in names:
        own = rows[rows["row"] == name].groupby("epoch")[["angle", "predicted"]].mean()
        epochs = [float(epoch) + 1 for epoch in own.index]
        lines += [Line(name, epochs, list(own["angle"])), Line(name, epochs, list(own["predicted"]), dashed=True)]
    return lines


def _show_8(table: pd.DataFrame) -> Sequence[Exhibit]:
    exhibits = []
    for panel, rows in table[table["row"] == MANY].groupby("panel"):
        k = PANELS[str(panel)]
        growth = rows.groupby("epoch")["gradient"].mean().dropna()
        epochs = [float(epoch) + 1 for epoch in growth.index]
        lines = [
            Line("gradient", epochs, list(growth)),
            Line("√k: independent", epochs, [math.sqrt(k)] * len(epochs), dashed=True),
            Line("k: aligned", epochs, [float(k)] * len(epochs), dashed=True),
        ]
        exhibits.append(FigureExhibit(_title(panel), "epoch", "‖g(kB)‖/‖g(B)‖", lines, log_y=True))
    return exhibits


_CHOICES = (
    "momentum 0.9 (the paper prints that of the weight decay); no warm-up",
    "k batches of B samples, each with its own batch statistics, make the gradient over kB samples",
    f"much larger is read as {MUCH:g} times; errors are over the epochs of the second half",
    f"tiny: a network of three convolutions on 320 {imagenet.DRAWN_IN_WORDS}, averaged to 7×7 pixels, batches of 10 "
    "for 3 epochs at a fixed rate; small: ResNet-18 on CIFAR-10, batches of 64 for 30 epochs",
)
FIGURE_7 = Experiment(
    id="smd/fig7",
    title="The angle over k small steps and over one step at k times the batch and rate",
    claim="Under the linear scaling rule k small steps turn the weights much further than the large step for them.",
    judge=_judge_7,
    show=_show_7,
    compute=_compute,
    choices=_CHOICES,
    unavailable=imagenet.NEEDED,
)
FIGURE_8 = Experiment(
    id="smd/fig8",
    title="How the gradient's norm grows with the batch",
    claim="Not the gradient's growth sets the angle: at k times batch and rate a step turns √k times as far.",
    judge=_judge_8,
    show=_show_8,
    compute=_compute,
    choices=_CHOICES,
    unavailable=imagenet.NEEDED,
)
