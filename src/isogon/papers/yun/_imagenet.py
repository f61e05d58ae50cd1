"""Figure 8 of Yun et al.: weight decay searched on a sixteenth of ImageNet, and on all of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import pandas as pd

from isogon import Recipe
from isogon.lab import Config
from isogon.papers import _imagenet as imagenet
from isogon.papers.reproduction import (
    Experiment,
    Judgement,
    Label,
    Options,
    Planned,
    Scale,
    Verdict,
    cell_of,
    final_row,
)
from isogon.papers.yun._columns import columns_of
from isogon.papers.yun._grids import base_run, config_at
from isogon.report import FigureExhibit, Line

#: the tuning factor of the best weight decay on the sixteenth, 80,000 · 0.1 · 0.0016/(512 · 0.1)
STATED = 0.25
#: N of panels (a) and (b)
_SIZES: Mapping[Scale, tuple[int, int]] = {
    "tiny": (200, 400),
    "small": (3125, 50_000),
    "paper": (80_000, imagenet.SAMPLES),
}


def _runs(scale: Scale, samples: int) -> list[Config]:
    """Weight decays ×2 apart: five about the tuning factor 0.25, at tiny scale the first three rows of table 7."""
    if scale == "tiny":
        drawn = replace(base_run("tiny", "plain"), data=imagenet.DRAWN, augmentation="resized-crop:24")
        return [config_at(drawn, "b", octave, samples=samples, batch_size=50) for octave in range(3)]
    small = scale == "small"
    batch_size, epochs = (128, 100) if small else (512, 200)
    base = Recipe(lr=0.1, weight_decay=0.0, batch_size=batch_size, samples=samples, epochs=epochs)
    config = Config(
        recipe=base,
        net="efficientnet_b0",
        net_options={} if small else {"stem": "imagenet"},
        data="cifar10" if small else imagenet.DATA,
        augmentation="crop-flip" if small else imagenet.AUGMENTATION,
        schedule="lr_50_75_90" if small else "lr_100_150_180",
        precision="bfloat16",
        monitor_every=100,
        save_weights=False,
    )
    # N is rounded to whole octaves of the smaller set, so both panels have the same tuning factors.
    whole = _SIZES[scale][0] * 2 ** round(math.log2(samples / _SIZES[scale][0]))
    stated = STATED * batch_size * (1 - base.momentum) / (whole * base.lr)
    decays = [float(f"{stated * 2.0**octave:.4g}") for octave in range(-2, 3)]
    return [replace(config, recipe=replace(base, weight_decay=decay)) for decay in decays]


def _plan(options: Options) -> list[Planned]:
    planned = []
    for panel, samples in zip("ab", _SIZES[options.scale], strict=True):
        for config in _runs(options.scale, samples):
            labels: dict[str, Label] = {
                "panel": panel,
                "row": f"{config.recipe.weight_decay:g}",
                "column": str(samples),
                "decay": config.recipe.weight_decay,
                # Relative to nothing in particular: only ratios between the panels count.
                "factor": 2.0 ** round(math.log2(config.recipe.tuning_factor / STATED)),
            }
            planned += [Planned(replace(config, seed=seed), {**labels, "seed": seed}) for seed in options.seed_range(1)]
    return planned


def judge_transfer(table: pd.DataFrame) -> Judgement:
    """Whether the best tuning factor of panel (a) is within a factor of 2 of the best of panel (b)."""
    columns = {panel: column for (panel, _), column in columns_of(table).items()}
    if set(columns) != {"a", "b"} or any(math.isnan(column.noise) for column in columns.values()):
        return Judgement("undecided", "Both panels need three weight decays or more that survive, and a known noise.")
    part, whole = columns["a"], columns["b"]
    predicted, best = part.best, whole.best
    near = [factor for factor in whole.cells if predicted / 2 <= factor <= 2 * predicted]
    far = [factor for factor in whole.cells if factor not in near]
    verdict: Verdict = "undecided"
    if near and any(all(whole.exceeds(factor, other) for other in near) for factor in far):
        verdict = "fails"
    elif (
        best in near
        and all(whole.exceeds(best, factor) for factor in far)
        and predicted not in (min(part.cells), max(part.cells))
    ):
        verdict = "holds"
    sentence = (
        f"The best tuning factor is {predicted * STATED:g} on the part and {best * STATED:g} on the whole, a factor of "
        f"{max(best / predicted, predicted / best):g} apart."
    )
    return Judgement(verdict, sentence, {"part": predicted * STATED, "whole": best * STATED, "noise": whole.noise})


def show_transfer(table: pd.DataFrame) -> list[FigureExhibit]:
    """Accuracy against weight decay, one panel per data size."""
    shown = []
    for panel, rows in table.groupby("panel"):
        means = {float(str(decay)): cell_of(cell, unit=100).mean for decay, cell in rows.groupby("decay")}
        line = Line(f"N = {rows['column'].iloc[0]}", list(means), list(means.values()))
        shown.append(FigureExhibit(f"Figure 8 ({panel})", "λ", "test accuracy [%]", [line], log_x=True))
    return shown


FIGURE8 = Experiment(
    id="yun/fig8",
    title="EfficientNet-B0 on ImageNet: weight decay searched on a sixteenth of the data",
    claim="The tuning factor of the best weight decay on 80,000 images (0.0016, factor 0.25) predicts that of all of "
    "ImageNet to within one step of 2: predicted 0.0001, best 0.00005, second best 0.0001.",
    plan=_plan,
    keep=final_row,
    judge=judge_transfer,
    show=show_transfer,
    choices=(
        "Grid, accuracies and number of runs are not in the text: five weight decays ×2 apart about the factor 0.25 "
        "and one run of each.",
        "Images of 224×224 from 256×256, plain batch norm, dropout and stochastic depth of 0.2 as published, a "
        "class-balanced part, a last batch that is not full dropped, bfloat16.",
        "At small scale CIFAR-10, N = 3125 and 50,000, 100 epochs.",
        f"At tiny scale a network of three convolutions with ghost batches of 25 on {imagenet.DRAWN_IN_WORDS}, crops "
        "of 24×24 averaged to 6×6 pixels, N = 200 and 400, three weight decays, three epochs, float32.",
    ),
    unavailable=imagenet.NEEDED,
)
