"""Wan et al., "Spherical Motion Dynamics": figures 2 to 9, tables 1 and 2."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pandas as pd

from isogon.papers import _imagenet as imagenet
from isogon.papers.reproduction import (
    Experiment,
    Judgement,
    Options,
    Planned,
    cell_of,
    combine,
    final_row,
    finished_rows,
    mean_lines,
    mean_of,
)
from isogon.papers.smd._maps import FIGURE_4, FIGURE_5
from isogon.papers.smd._motion import (
    FIRST_STAGE,
    SECOND_STAGE,
    TOLERANCE,
    by_layer,
    by_step,
    excess_by_blocks,
    excess_by_layer,
    judge_near_law,
    judge_off_law,
    last_third,
    layer_figure,
    step_figure,
)
from isogon.papers.smd._scaling import FIGURE_7, FIGURE_8
from isogon.papers.smd._setups import FIXED_RATE, MOBILE, MOBILE_RECIPES, RESCALED, SETUPS, STANDARD
from isogon.papers.smd.detection import CHOICES as DETECTION_CHOICES
from isogon.papers.smd.detection import NEEDED as DETECTION_NEEDED
from isogon.papers.smd.detection import PANELS as DETECTION_PANELS
from isogon.papers.smd.detection import TABLE_2, layer_rows
from isogon.papers.smd.detection import images as detection_images
from isogon.report import Exhibit, FigureExhibit, TableExhibit

SGD, SGDM = "SGD", "SGDM"
# The layer whose norm is shown, by its name in our networks and in torchvision's.
_SHOWN_LAYERS = (FIRST_STAGE, "layer1.0.conv2.weight")
#: table 1: rescaling is harmless when it costs no more than this
HARMLESS = 0.005

_TINY = (
    f"tiny: a network of three convolutions on 400 {imagenet.DRAWN_IN_WORDS}, averaged to 7×7 pixels, weight decay "
    "0.02, batches of 10 for 10 epochs"
)
_CHOICES = (
    _TINY,
    "small: ResNet-18 on CIFAR-10, weight decay 5e-4, batches of 128 for 60 epochs (40 in figure 2)",
    "at both γ, β and the classifier are frozen, so that every trained weight is scale-invariant",
    f"at the law means within {100 * TOLERANCE:g} % of it",
)
_RESCALING = (
    "rescaling is trained in its balanced form: at a drop η and λ of the scale-invariant weights are divided by √10, "
    "instead of η by 10 and ‖w‖ by 10^(1/4), which makes the same networks; other weights keep the standard schedule",
    "norms of the rescaled run are shown as they would be with the weights rescaled",
)


# Figure 2: a fixed rate


def _plan_fixed(options: Options) -> list[Planned]:
    setup = FIXED_RATE[options.scale]
    # At tiny scale SGD has ten times the weight decay, so that few steps settle it.
    decay = setup.recipe.weight_decay
    without = {"momentum": 0.0, "weight_decay": 10 * decay if options.scale == "tiny" else decay}
    return [
        Planned(setup.config("constant", seed, recipe=recipe), {"row": row, "seed": seed})
        for row, recipe in ((SGD, without), (SGDM, {}))
        for seed in options.seed_range(setup.seeds)
    ]


def _judge_fixed(table: pd.DataFrame) -> Judgement:
    parts = []
    for row in (SGD, SGDM):
        late = last_third(finished_rows(table, row=row))
        angle = excess_by_blocks(late, "step_angle", "predicted_step_angle", power=2)
        parts += [judge_near_law(f"{row}: angle of a step", angle)]
        parts += [judge_near_law(f"{row}: norm", excess_by_blocks(late, "norm", "predicted_norm"))]
    return combine(*parts)


def _show_fixed(table: pd.DataFrame) -> Sequence[Exhibit]:
    exhibits: list[Exhibit] = []
    for row in (SGD, SGDM):
        gradients = [("‖g̃‖²", row, "unit_grad_sq", False), ("‖g̃‖², mean", row, "mean_unit_grad_sq", False)]
        if row == SGDM:
            gradients += [("h", row, "adjusted_grad_sq", False), ("h, mean", row, "mean_adjusted_grad_sq", False)]
        norms = [("‖w‖", row, "norm", False), ("law", row, "predicted_norm", True)]
        angles = [("angle", row, "step_angle", False), ("law", row, "predicted_step_angle", True)]
        exhibits += [
            step_figure(table, f"{row}: unit gradient", "squared norm", gradients, log_y=True),
            step_figure(table, f"{row}: norm", "‖w‖", norms),
            step_figure(table, f"{row}: angle of a step", "rad", angles),
        ]
    return exhibits


# Figures 3 and 6, table 1: several stages, with and without rescaling


def _plan_stages(options: Options) -> list[Planned]:
    setup = SETUPS[options.scale]
    return [
        Planned(setup.config(schedule, seed), {"row": row, "seed": seed})
        for row, schedule in ((STANDARD, setup.step), (RESCALED, f"balanced({setup.step})"))
        for seed in options.seed_range(setup.seeds)
    ]


def _stages(rows: pd.DataFrame) -> list[int]:
    """Stages after the first, which starts far from equilibrium."""
    return sorted({int(stage) for stage in rows["stage"]} - {0})


def _plan_panels(options: Options) -> list[Planned]:
    """The trainings of figure 3's first row; those of its second row are not trained by the lab."""
    return [replace(planned, labels={"panel": "abc", **planned.labels}) for planned in _plan_stages(options)]


def _judge_stages(table: pd.DataFrame) -> Judgement:
    """Rescaled: at the law in every later stage as a whole. Standard: below it in the last. In each network."""
    return combine(*(part for panel, rows in table.groupby("panel") for part in _stage_verdicts(str(panel), rows)))


def _stage_verdicts(panel: str, table: pd.DataFrame) -> list[Judgement]:
    rescaled, standard = finished_rows(table, row=RESCALED), finished_rows(table, row=STANDARD)
    stages, network = _stages(standard), "Mask R-CNN, " if panel == DETECTION_PANELS else ""
    if not stages or stages != _stages(rescaled):
        return [Judgement("undecided", f"{network}not both runs have gone through all stages")]
    parts = [
        judge_near_law(f"{network}rescaled, stage {stage + 1}", excess_by_layer(rescaled[rescaled["stage"] == stage]))
        for stage in stages
    ]
    last = standard[standard["stage"] == stages[-1]]
    parts.append(judge_off_law(f"{network}standard, stage {stages[-1] + 1}", excess_by_layer(last), above=False))
    return [*parts, *_gradient_verdicts(network, rescaled, stages)]


def _gradient_verdicts(network: str, rescaled: pd.DataFrame, stages: Sequence[int]) -> list[Judgement]:
    """Of the rescaled run's later stages: √h beside that of the first one's last epoch, the mean ratio of all layers.

    At a drop the angle η√h/‖w‖² is the law's if h is the same before and after. The paper claims nothing about h.
    """

    def size(rows: pd.DataFrame) -> pd.Series[float]:
        sizes: pd.Series[float] = rows.groupby(["layer", "seed"])["adjusted_grad_sq"].mean() ** 0.5
        return sizes

    if "adjusted_grad_sq" not in rescaled or rescaled["adjusted_grad_sq"].isna().any():  # of an older version
        return []
    first = rescaled[rescaled["stage"] == 0]
    before = size(first[first["epoch"] == first["epoch"].max()])
    numbers = {
        f"{network}√h, stage {stage + 1}": float((size(rescaled[rescaled["stage"] == stage]) / before).mean())
        for stage in stages
    }
    ratios = ", ".join(f"{ratio:.2f}" for ratio in numbers.values())
    sentence = f"{network}unit gradients √h of these stages are {ratios} of those before the first drop"
    return [Judgement("holds", sentence, numbers)]


def _show_stages(table: pd.DataFrame) -> Sequence[Exhibit]:
    return [figure for panel, rows in table.groupby("panel") for figure in _stage_figures(str(panel), rows)]


def _stage_figures(panel: str, table: pd.DataFrame) -> list[FigureExhibit]:
    detector = panel == DETECTION_PANELS
    network, time = ("Mask R-CNN: ", "part of the training") if detector else ("", "epoch")
    figures = [
        replace(layer_figure(rows, f"{network}Angle of a step, {str(row).lower()}"), x_name=time)
        for row, rows in table.groupby("row", sort=False)
    ]
    layers = list(dict.fromkeys(table["layer"]))
    layer = next((name for name in layers if name.endswith(_SHOWN_LAYERS)), layers[len(layers) // 2])
    lines = mean_lines(table[table["layer"] == layer], "epoch", "rescaled_norm", by="row", shift=1)
    return [*figures, FigureExhibit(f"{network}Norm of {layer}", time, "‖w‖", lines)]


def _judge_norms(table: pd.DataFrame) -> Judgement:
    rescaled, standard = finished_rows(table, row=RESCALED), finished_rows(table, row=STANDARD)
    stages = _stages(standard)
    if not stages or stages != _stages(rescaled):
        return Judgement("undecided", "Not both runs have gone through all stages.")
    parts = [
        judge_near_law(
            f"norm of the rescaled run, stage {stage + 1}",
            excess_by_blocks(rescaled[rescaled["stage"] == stage], "norm", "predicted_norm"),
        )
        for stage in stages
    ]
    last = excess_by_blocks(standard[standard["stage"] == stages[-1]], "norm", "predicted_norm")
    parts.append(judge_off_law(f"norm of the standard run, stage {stages[-1] + 1}", last, above=True))
    return combine(*parts)


def _show_norms(table: pd.DataFrame) -> Sequence[Exhibit]:
    # The law's norm, moved to the rescaled run's weights as the measured one is.
    shown = table.assign(law=table["predicted_norm"] * table["rescaled_norm"] / table["norm"])
    exhibits: list[Exhibit] = []
    for row in (STANDARD, RESCALED):
        columns = [("‖g̃‖²", row, "mean_unit_grad_sq", False), ("h", row, "mean_adjusted_grad_sq", False)]
        title = f"{row}: unit gradient, means of 200 steps"
        exhibits.append(step_figure(shown, title, "squared norm", columns, log_y=True))
    norms = [
        line for row in (STANDARD, RESCALED) for line in ((row, row, "rescaled_norm", False), (row, row, "law", True))
    ]
    return [*exhibits, step_figure(shown, "Norm", "‖w‖", norms, log_y=True)]


def _judge_accuracy(table: pd.DataFrame) -> Judgement:
    """Rescaled less standard: harmless within half a point; runs of one seed are compared with each other."""
    by_seed = table[table["status"] == "finished"].pivot_table(index="seed", columns="row", values="accuracy")
    if not {STANDARD, RESCALED} <= set(by_seed):
        return Judgement("undecided", "One of the two runs is missing.")
    gap = mean_of((by_seed[RESCALED] - by_seed[STANDARD]).dropna())
    sentence = f"Rescaling changes the accuracy by {gap.text(' points', times=100, signed=True)}."
    numbers = {"rescaled − standard": gap.size, "error": gap.error}
    return Judgement(gap.within(HARMLESS), sentence, numbers)


def _show_accuracy(table: pd.DataFrame) -> Sequence[Exhibit]:
    column = "top-1 accuracy"
    ours = {(row, column): cell_of(table[table["row"] == row], unit=100) for row in (STANDARD, RESCALED)}
    printed = {(STANDARD, column): 76.25, (RESCALED, column): 76.27}
    return [
        TableExhibit(
            "Accuracy under the multi-stage schedule (%)", "run", "", [STANDARD, RESCALED], [column], ours, printed
        )
    ]


# Figure 9: other networks


def _plan_mobile(options: Options) -> list[Planned]:
    setup = SETUPS[options.scale]
    recipe = MOBILE_RECIPES[options.scale]
    return [
        Planned(
            setup.config(setup.step, seed, options=changes, recipe=recipe),
            {"panel": panel, "row": STANDARD, "seed": seed},
        )
        for panel, changes in MOBILE[options.scale].items()
        for seed in options.seed_range(1)
    ]


def _judge_mobile(table: pd.DataFrame) -> Judgement:
    """The last third of the first stage, away from transients."""
    parts = []
    for panel in sorted({str(panel) for panel in table["panel"]}):
        first = finished_rows(table, panel=panel, stage=0)
        parts.append(judge_near_law(f"panel {panel}: angle of a step", excess_by_layer(last_third(first, "epoch"))))
    return combine(*parts)


def _show_mobile(table: pd.DataFrame) -> Sequence[Exhibit]:
    names = {"a": "MobileNet-V2", "b": "ShuffleNet-V2+"}
    return [
        layer_figure(rows, f"({panel}) {names.get(str(panel), '')}: angle of a step")
        for panel, rows in table.groupby("panel")
    ]


EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment(
        id="smd/fig2",
        title="Unit gradient, norm and angle of a layer at a fixed rate, SGD and SGDM",
        claim="The norm follows the equilibrium of the present gradients, and steps turn by the law's angle.",
        plan=_plan_fixed,
        keep=partial(by_step, layer=SECOND_STAGE),
        judge=_judge_fixed,
        show=_show_fixed,
        choices=(
            *_CHOICES,
            "batch size 256 and 30 epochs; angles and norms are judged in the last third of the run",
            "tiny: the rate is 0.1, and SGD has ten times the weight decay, so that few steps settle it",
        ),
        unavailable=imagenet.NEEDED,
    ),
    Experiment(
        id="smd/fig3",
        title="Angles of all layers in a run of several stages, with and without rescaled weights",
        claim="Weights divided by 10^(1/4) at a drop turn at the law's angle at once; without that the last stages end "
        "below it.",
        plan=_plan_panels,
        keep=by_layer,
        compute=layer_rows,
        computed_images=detection_images,
        judge=_judge_stages,
        show=_show_stages,
        choices=(*_CHOICES, *_RESCALING, "panels d to f are those of Mask R-CNN", *DETECTION_CHOICES),
        unavailable=f"{imagenet.NEEDED} For panels d to f {DETECTION_NEEDED}",
    ),
    FIGURE_4,
    FIGURE_5,
    Experiment(
        id="smd/fig6",
        title="Unit gradients and the norm in the runs of figure 3",
        claim="The norm that the gradients predict is that of the rescaled run; the standard run's lags after drops.",
        plan=_plan_stages,
        keep=partial(by_step, layer=FIRST_STAGE),
        judge=_judge_norms,
        show=_show_norms,
        choices=(*_CHOICES, *_RESCALING),
        unavailable=imagenet.NEEDED,
    ),
    FIGURE_7,
    FIGURE_8,
    Experiment(
        id="smd/fig9",
        title="Angles of all layers of MobileNet-V2 and ShuffleNet-V2+",
        claim="Off the transients the angle of a step is the law's in these networks too.",
        plan=_plan_mobile,
        keep=by_layer,
        judge=_judge_mobile,
        show=_show_mobile,
        choices=(
            "ImageNet, 90 epochs, batch size 1024; judged in the last third of the first stage",
            f"{_TINY}, in panel b with trained γ, β and classifier",
            "small: both networks on CIFAR-10, batches of 128 for 60 epochs",
        ),
        unavailable=imagenet.NEEDED,
    ),
    Experiment(
        id="smd/table1",
        title="Accuracy with and without rescaled weights",
        claim="Rescaling does no harm (the paper disclaims any gain): the accuracies differ by less than half a point.",
        plan=_plan_stages,
        keep=final_row,
        judge=_judge_accuracy,
        show=_show_accuracy,
        choices=(*_CHOICES, *_RESCALING),
        unavailable=imagenet.NEEDED,
    ),
    TABLE_2,
)
