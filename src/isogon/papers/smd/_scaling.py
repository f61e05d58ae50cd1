"""Wan et al.'s figures 7 and 8: k small steps against one large step under the linear scaling rule."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from isogon.dynamics import measures
from isogon.lab import Config, Run, Training, column_of, default_device
from isogon.papers import _imagenet as imagenet
from isogon.papers.reproduction import Experiment, Gap, Judgement, Options, Planned, Scale, combine, mean_line, mean_of
from isogon.papers.smd._motion import FIRST_STAGE
from isogon.papers.smd._setups import CIFAR, IMAGENET, TINY
from isogon.recipe import Recipe
from isogon.report import Exhibit, FigureExhibit, Line
from isogon.schedules import from_name
from isogon.theory import Motion, law

#: panel → k, the large batch over the small one
PANELS = {"a": 4, "b": 16}
MANY, ONE, SMALL = "k small steps", "one large step", "one small step"
#: figure 7: much larger means by more than a fifth
MUCH = 1.2
#: figure 8: the angle grows as √k within this share
TOLERANCE = 0.15


@dataclass(frozen=True)
class LargeBatchSetup:
    """The run at the small batch, whose weights are kept after every `snapshot_every` epochs."""

    recipe: Recipe
    layer: str
    options: Mapping[str, Any]
    snapshot_every: int

    def config(self, k: int, seed: int) -> Config:
        """The run at k times batch and rate; the small one (k = 1) also keeps angles over k steps and snapshots."""
        small = k == 1
        return Config(
            recipe=replace(self.recipe, batch_size=self.recipe.batch_size * k, lr=self.recipe.lr * k),
            seed=seed,
            monitor_every=0,
            turns={self.layer: [1, *PANELS.values()] if small else [1]},
            snapshot_every=self.snapshot_every if small else 0,
            save_weights=False,
            **self.options,
        )


SETUPS: dict[Scale, LargeBatchSetup] = {
    "tiny": LargeBatchSetup(
        Recipe(lr=0.01, weight_decay=0.05, batch_size=10, samples=320, epochs=10),
        "body.1.conv.weight",
        {**TINY, "schedule": "constant"},
        snapshot_every=2,
    ),
    "small": LargeBatchSetup(
        Recipe(lr=0.05, weight_decay=5e-4, batch_size=64, samples=50_000, epochs=30),
        FIRST_STAGE,
        {**CIFAR, "schedule": "lr_10_20_27"},
        snapshot_every=3,
    ),
    "paper": LargeBatchSetup(
        Recipe(lr=0.1, weight_decay=1e-4, batch_size=256, samples=imagenet.SAMPLES, epochs=90),
        FIRST_STAGE,
        {**IMAGENET, "schedule": "lr_30_60_80"},
        snapshot_every=10,
    ),
}


def _plan(options: Options) -> list[Planned]:
    """Each panel's two runs; the small one is the same in both."""
    setup = SETUPS[options.scale]
    return [
        Planned(setup.config(times, seed), {"panel": panel, "row": row, "seed": seed})
        for seed in options.seed_range(1)
        for panel, k in PANELS.items()
        for row, times in ((SMALL, 1), (ONE, k))
    ]


def _keep(run: Run) -> pd.DataFrame:
    """One row per epoch: the layer's angle over 1 and k steps, the law's, and the growth of the gradient."""
    if not len(run.epochs):
        return pd.DataFrame()
    config, [(layer, spans)] = run.config, run.config.turns.items()
    epochs = run.epochs["epoch"]
    columns: dict[str, Any] = {"epoch": epochs, "status": run.status}
    for k in spans:
        columns |= {f"angle_{k}": run.epochs[column_of(layer, k)], f"predicted_{k}": law_angles(config, epochs, k)}
    for k, growths in _gradient_growths(run, layer, spans[1:]).items():
        columns[f"gradient_{k}"] = epochs.map(growths)
    return pd.DataFrame(columns)


def law_angles(config: Config, epochs: Iterable[int], k: int) -> list[float]:
    """The law's angle over k steps at each epoch's own rate and decay."""
    recipe, steps = config.recipe, config.steps_per_epoch
    schedule = from_name(config.schedule, recipe, epochs=config.epochs, steps_per_epoch=steps)

    def motion(step: int) -> Motion:
        lr, weight_decay = float(schedule.lr(step)), float(schedule.weight_decay(step))
        return law("sgd", lr=lr, weight_decay=weight_decay, momentum=recipe.momentum)

    return [float(motion(epoch * steps).angle(k)) for epoch in epochs]


def _gradient_growths(run: Run, layer: str, counts: Sequence[int]) -> dict[int, dict[int, float]]:
    """‖g(kB)‖/‖g(B)‖ of `layer`, gradients summed over samples, for each k of `counts` and epoch with a snapshot."""
    growths: dict[int, dict[int, float]] = {k: {} for k in counts}
    if not growths:
        return growths
    trial = Training(run.config, device=default_device())
    for ended, file in run.snapshots.items():
        trial.model.load_state_dict(torch.load(file, map_location=trial.device, weights_only=True))
        trial.epoch = ended  # the next one's batches are new to these weights
        trial.begin_epoch()
        batches = [batch for _, batch in zip(range(max(counts)), trial.batches(), strict=False)]
        for k in counts:
            growths[k][ended - 1] = _gradient_growth(trial, layer, batches[:k], k)
    trial.close()
    return growths


def _gradient_growth(trial: Training, layer: str, batches: Sequence[tuple[Tensor, Tensor]], k: int) -> float:
    """The growth from the first of k `batches` to all of them; NaN where there are fewer."""
    model = copy.deepcopy(trial.model)  # running statistics stay what they were
    weight = dict(model.named_parameters())[layer]

    def loss(inputs: Tensor, labels: Tensor) -> Tensor:
        outputs: Tensor = model(inputs)
        return cross_entropy(outputs, labels)

    def gradient(part: Iterable[tuple[Tensor, Tensor]]) -> list[Tensor]:
        return measures.summed_gradient([weight], loss, part)

    return measures.gradient_norm_ratio(gradient(batches), gradient(batches[:1])) if len(batches) == k else math.nan


def _sides(table: pd.DataFrame, panel: str) -> pd.DataFrame:
    """A panel's curves, one row per epoch: over k small steps, over one, and over a large one."""
    k = PANELS[panel]
    rows = table[table["panel"] == panel]
    parts = []
    for name, run, steps in ((MANY, SMALL, k), (SMALL, SMALL, 1), (ONE, ONE, 1)):
        side = rows[rows["row"] == run]
        # If only the other run has ended, the column is not there.
        angles = {kind: side.get(f"{kind}_{steps}") for kind in ("angle", "predicted")}
        parts.append(side[["seed", "epoch", "status"]].assign(row=name, **angles))
    return pd.concat(parts, ignore_index=True)


def _gradients(table: pd.DataFrame, panel: str) -> pd.DataFrame:
    """A panel's growth of the gradient, one row per snapshot."""
    rows = table[(table["panel"] == panel) & (table["row"] == SMALL)]
    return rows[["epoch"]].assign(growth=rows.get(f"gradient_{PANELS[panel]}")).dropna()


def _ratio(table: pd.DataFrame, panel: str, first: str, second: str) -> Gap:
    """The mean over the second half of the epochs and all seeds of `first` over `second`, and its standard error."""
    rows = _sides(table, panel)
    rows = rows[rows["status"] == "finished"]
    sides = rows[rows["epoch"] >= rows["epoch"].max() / 2].set_index(["seed", "epoch"])
    ratios = (sides[sides["row"] == first]["angle"] / sides[sides["row"] == second]["angle"]).dropna()
    return mean_of(ratios)


def _judge_7(table: pd.DataFrame) -> Judgement:
    parts = []
    for panel, k in PANELS.items():
        ratio = _ratio(table, panel, MANY, ONE)
        sentence = f"{k} small steps turn the weights {ratio.text()} times as far as a large one"
        parts.append(Judgement(ratio.above(MUCH), sentence, {f"k = {k}: ratio of angles": ratio.size}))
    return combine(*parts)


def _judge_8(table: pd.DataFrame) -> Judgement:
    parts = []
    for panel, k in PANELS.items():
        growth, root = _ratio(table, panel, ONE, SMALL), math.sqrt(k)
        gradient = float(_gradients(table, panel)["growth"].mean())
        off = Gap(growth.size / root - 1, growth.error / root, growth.freedom)
        sentence = (
            f"at {k} times batch and rate a step's angle grows {growth.text()} times "
            f"(√k = {root:g}), the summed gradient {gradient:.2f} times"
        )
        numbers = {f"k = {k}: growth of the angle": growth.size, f"k = {k}: growth of the gradient": gradient}
        parts.append(Judgement(off.within(TOLERANCE), sentence, numbers))
    return combine(*parts)


def _show_7(table: pd.DataFrame) -> Sequence[Exhibit]:
    return [
        FigureExhibit(_title(panel), "epoch", "angle (rad)", _lines(_sides(table, panel), (MANY, ONE)), log_y=True)
        for panel in sorted(set(table["panel"]))
    ]


def _title(panel: str) -> str:
    return f"({panel}) k = {PANELS[panel]}"


def _lines(rows: pd.DataFrame, names: Sequence[str]) -> list[Line]:
    lines = []
    for name in names:
        side = rows[rows["row"] == name]
        lines.append(mean_line(side, "epoch", "angle", name, shift=1))
        lines.append(mean_line(side, "epoch", "predicted", f"{name}: law", shift=1, dashed=True))
    return lines


def _show_8(table: pd.DataFrame) -> Sequence[Exhibit]:
    exhibits = []
    for panel in sorted(set(table["panel"])):
        k = PANELS[panel]
        gradient = mean_line(_gradients(table, panel), "epoch", "growth", "gradient", shift=1)
        epochs = gradient.x
        lines = [
            gradient,
            Line("√k: independent", epochs, [math.sqrt(k)] * len(epochs), dashed=True),
            Line("k: aligned", epochs, [float(k)] * len(epochs), dashed=True),
        ]
        exhibits.append(FigureExhibit(_title(panel), "epoch", "‖g(kB)‖/‖g(B)‖", lines, log_y=True))
    return exhibits


_CHOICES = (
    "momentum 0.9 (the paper prints that of the weight decay); no warm-up",
    "k batches of B samples, each with its own batch statistics, make the gradient over kB samples; taken at the "
    "weights after one epoch in 10 (small: in 3, tiny: in 2)",
    f"much larger is read as {MUCH:g} times; errors are over the epochs of the second half",
    f"tiny: a network of three convolutions on 320 {imagenet.DRAWN_IN_WORDS}, averaged to 7×7 pixels, batches of 10 "
    "for 10 epochs at a fixed rate; small: ResNet-18 on CIFAR-10, batches of 64 for 30 epochs",
)
FIGURE_7 = Experiment(
    id="smd/fig7",
    title="The angle over k small steps and over one step at k times the batch and rate",
    claim="Under the linear scaling rule k small steps turn the weights much further than the large step for them.",
    judge=_judge_7,
    show=_show_7,
    plan=_plan,
    keep=_keep,
    choices=_CHOICES,
    unavailable=imagenet.NEEDED,
)
FIGURE_8 = Experiment(
    id="smd/fig8",
    title="How the gradient's norm grows with the batch",
    claim="Not the gradient's growth sets the angle: at k times batch and rate a step turns √k times as far.",
    judge=_judge_8,
    show=_show_8,
    plan=_plan,
    keep=_keep,
    choices=_CHOICES,
    unavailable=imagenet.NEEDED,
)
