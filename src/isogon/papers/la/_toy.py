"""Li and Arora's section 3: logistic regression that weight decay or normalisation alone settles, but not both."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from isogon.papers.reproduction import Experiment, Judgement, Options, Scale
from isogon.report import Exhibit, FigureExhibit, Line
from isogon.theory import cone_escape_steps, logistic_cone

_LR, _WEIGHT_DECAY, _DIM, _BATCH = 0.1, 0.1, 10, 400
#: ε: half of the widest cone that theorem 3.1 speaks of, √(ηλ/2)
CONE = math.sqrt(_LR * _WEIGHT_DECAY / 2) / 2
_STEPS: dict[Scale, int] = {"tiny": 1200, "small": 20_000, "paper": 20_000}
_NAMES = {"decay": "weight decay alone", "normalised": "normalisation alone", "both": "both"}
# Steps per row: a row has the largest angle since the last one.
_WINDOW = 50


def _compute(options: Options) -> pd.DataFrame:
    """The largest angle to the true direction in each window of steps, and ‖w‖ at its end."""
    tables = []
    for case, name in _NAMES.items():
        for seed in options.seed_range(3):
            run = logistic_cone(
                case,
                dim=_DIM,
                batch_size=_BATCH,
                lr=_LR,
                weight_decay=_WEIGHT_DECAY,
                steps=_STEPS[options.scale],
                seed=seed,
            )
            angles = run.angle[1:].reshape(-1, _WINDOW)
            ends = (np.arange(len(angles)) + 1) * _WINDOW
            tables.append(
                pd.DataFrame({"step": ends, "angle": angles.max(axis=1), "norm": run.norm[ends]}).assign(
                    row=name, seed=seed
                )
            )
    return pd.concat(tables, ignore_index=True)


def _judge(table: pd.DataFrame) -> Judgement:
    """In the second half of the steps: the longest stay of `both` in the cone, and whether the others ever leave it."""
    late = table[table["step"] > table["step"].max() / 2]
    both = late[late["row"] == _NAMES["both"]]
    outside = {name: float((late[late["row"] == name]["angle"] > CONE).mean()) for name in _NAMES.values()}
    numbers = {f"{name}: share of windows outside the cone": share for name, share in outside.items()}
    if not len(both) or any(math.isnan(share) for share in outside.values()):
        return Judgement("undecided", "A case is missing.", numbers)
    bound = cone_escape_steps(
        lr=_LR,
        weight_decay=_WEIGHT_DECAY,
        cone=CONE,
        norm_sq=float(both["norm"].max()) ** 2,
        batch_size=_BATCH,
        dim=_DIM,
        failure=0.05,
    )
    stay = max(_longest_stay(rows) for _, rows in both.groupby("seed"))
    numbers |= {"longest stay in the cone, steps": stay, "theorem 3.1's bound, steps": bound}
    settled = [outside[_NAMES["decay"]], outside[_NAMES["normalised"]]]
    sentence = (
        f"Together they stay inside a cone of {CONE:.3f} rad for {stay:g} steps at most (theorem 3.1: {bound:.0f}); "
        f"weight decay alone is outside in {settled[0]:.0%} of the windows, normalisation alone in {settled[1]:.0%}."
    )
    length = float(late["step"].max() - late["step"].min())
    if length < 2 * bound:
        return Judgement("undecided", sentence + " The runs are too short to tell.", numbers)
    if stay > bound or max(settled) > 0.5:
        return Judgement("fails", sentence, numbers)
    return Judgement("holds" if max(settled) <= 0.05 else "undecided", sentence, numbers)


def _longest_stay(rows: pd.DataFrame) -> float:
    longest = current = 0
    for inside in rows.sort_values("step")["angle"] <= CONE:
        current = current + 1 if inside else 0
        longest = max(longest, current)
    return float(longest * _WINDOW)


def _show(table: pd.DataFrame) -> Sequence[Exhibit]:
    first = table[table["seed"] == table["seed"].min()]
    exhibits = []
    for column, name in (("angle", "largest angle to the true direction (rad)"), ("norm", "‖w‖")):
        lines = [Line(str(row), list(rows["step"]), list(rows[column])) for row, rows in first.groupby("row")]
        if column == "angle":
            lines.append(Line("ε", [0, float(table["step"].max())], [CONE, CONE], dashed=True))
        exhibits.append(FigureExhibit(name, "step", name, lines, log_y=True))
    return exhibits


TOY = Experiment(
    id="la/toy",
    title="Weight decay, normalisation, and both on sign(x₁)",
    claim="Either alone converges; together the direction leaves every small cone again and again (theorem 3.1).",
    judge=_judge,
    show=_show,
    compute=_compute,
    choices=(
        f"η = {_LR}, λ = {_WEIGHT_DECAY}, {_DIM} dimensions, batches of {_BATCH}, ε = {CONE:.4f}: the paper gives none",
        f"the angle is the largest in each {_WINDOW} steps; a stay that ends within them is counted whole",
    ),
)
