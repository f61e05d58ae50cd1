"""Figure 11: the time to return to equilibrium is inversely proportional to the intrinsic learning rate."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pandas as pd

from isogon.lab import Config, Run
from isogon.papers.lla._judging import numbers_of, too_little_to_judge
from isogon.papers.lla._setup import CHOICES, decay_of, planned_runs, scheduled_config
from isogon.papers.reproduction import Experiment, Gap, Judgement, Label, Options, Planned, Scale
from isogon.report import Exhibit, FigureExhibit, Line
from isogon.theory import Floats, inverse_square_rate

#: recovered: the effective rate is this share of its equilibrium
RECOVERED = 0.9
#: time in units of 1/(ηλ) before the change, and after it: theory recovers after 1.5
_BEFORE, _AFTER = 2.0, 2.5
#: "almost linear" in the paper's words: the slope on log axes is 1 within so much, two errors allowed for
_TOLERANCE = 0.15
_RATES: dict[Scale, tuple[float, ...]] = {
    "paper": (0.1, 0.2, 0.4, 0.8, 1.6),
    "small": (0.4, 0.8, 1.6, 3.2),
    "tiny": (0.5, 1.0, 2.0),
}


def plan_recovery(options: Options) -> list[Planned]:
    """Equilibria of several ηλ at λ = 5e-4; then LR/10 and WD × 10 at once, which keeps ηλ and leaves equilibrium."""
    scale, decay = options.scale, decay_of(options.scale)

    def runs() -> Iterator[tuple[Config, dict[str, Label]]]:
        for lr in _RATES[scale]:
            x = lr * decay
            per_epoch = 20 if scale == "tiny" else 390
            change, rest = (math.ceil(time / x / per_epoch) for time in (_BEFORE, _AFTER))
            for seed in options.seed_range(1):
                made = scheduled_config(
                    scale,
                    [(0, lr, decay), (change, lr / 10, decay * 10)],
                    epochs=change + rest,
                    net="vgg16",
                    monitor_every=2 if scale == "tiny" else 10,
                    seed=seed,
                    tiny_samples=400,
                )
                step = change * made.steps_per_epoch
                yield made, {"column": f"{x:.3g}", "seed": seed, "intrinsic_lr": x, "change": step}

    return planned_runs(runs())


def keep_recovery(run: Run) -> pd.DataFrame:
    """Effective rate of all invariant weights at the measured steps, at most 500 of them."""
    if not len(run.epochs):
        return pd.DataFrame()
    records = run.records
    rows = records.loc[records["layer"] == "all", ["step", "norm", "effective_lr"]].dropna()
    thinned = rows.iloc[:: max(1, len(rows) // 500)]
    return thinned.assign(status=run.status).reset_index(drop=True)


def recoveries(table: pd.DataFrame) -> pd.DataFrame:
    """For each run the `steps` after the change until the effective rate is back, NaN where it is not."""
    rows = []
    for (column, seed), run in table.groupby(["column", "seed"]):
        ratios = _ratios(run)
        back = ratios.index[ratios >= RECOVERED]
        steps = float(back[0]) if len(back) and ratios.iloc[0] < RECOVERED else math.nan
        rows.append({"column": column, "seed": seed, "intrinsic_lr": run["intrinsic_lr"].iloc[0], "steps": steps})
    return pd.DataFrame(rows, columns=["column", "seed", "intrinsic_lr", "steps"])


def _ratios(run: pd.DataFrame) -> pd.Series[float]:
    """The effective rate over its level in the last quarter before the change, by steps after it."""
    run = run.sort_values("step")
    change = run["change"].iloc[0]
    before = run[(run["step"] < change) & (run["step"] >= 0.75 * change)]
    after = run[run["step"] >= change]
    level = math.exp(np.log(before["effective_lr"]).mean()) if len(before) else math.nan
    return pd.Series((after["effective_lr"] / level).to_numpy(), index=(after["step"] - change).to_numpy())


def theory_steps(intrinsic_lr: float) -> float:
    """γ jumps to 100 times its equilibrium and relaxes as 1 + 99 e^(−4xt): when it is 1/RECOVERED² times it."""
    return math.log(99 / (RECOVERED**-2 - 1)) / (4 * intrinsic_lr)


def judge_recovery(table: pd.DataFrame) -> Judgement:
    """The slope of ln(steps) over ln(1/ηλ) is 1 within its error."""
    times = recoveries(table).dropna() if len(table) else pd.DataFrame({"intrinsic_lr": []})
    if times["intrinsic_lr"].nunique() < 3:
        return too_little_to_judge("fewer than three intrinsic learning rates recovered")
    slope = _fit_line(-np.log(times["intrinsic_lr"].to_numpy()), np.log(times["steps"].to_numpy()))
    product = float((times["steps"] * times["intrinsic_lr"]).mean())
    verdict = Gap(slope.size - 1, slope.error).within(_TOLERANCE)
    sentence = (
        f"Recovery time against 1/(ηλ) has slope {slope.text()} on log axes; it takes "
        f"{product:.2f}/(ηλ) steps, {theory_steps(1):.2f} by theory."
    )
    return Judgement(verdict, sentence, {**numbers_of({"slope": slope}), "steps times ηλ": product})


def _fit_line(x: Floats, y: Floats) -> Gap:
    """The slope of a line by least squares, and its standard error."""
    away = x - x.mean()
    slope = float(away @ y / (away @ away))
    rest = y - y.mean() - slope * away
    return Gap(slope, math.sqrt(float(rest @ rest) / (len(x) - 2) / float(away @ away)))


def show_recovery(table: pd.DataFrame) -> list[Exhibit]:
    traces = []
    for column, run in table.groupby("column", sort=False):
        ratios = _ratios(run[run["seed"] == run["seed"].min()])
        x = float(run["intrinsic_lr"].iloc[0])
        traces.append(Line(f"ηλ = {column}", (ratios.index * x).tolist(), ratios.tolist()))
    times = np.linspace(0, _AFTER, 61)
    relaxed = inverse_square_rate(times, initial=100.0, intrinsic_lr=1.0, noise_trace=2.0)
    traces.append(Line("theory", times.tolist(), (relaxed**-0.5).tolist(), dashed=True))
    recovered = recoveries(table).dropna().sort_values("intrinsic_lr", ascending=False)
    inverse = 1 / recovered["intrinsic_lr"]
    points = [
        Line("measured", inverse.tolist(), recovered["steps"].tolist()),
        Line("theory", inverse.tolist(), [theory_steps(x) for x in recovered["intrinsic_lr"]], dashed=True),
    ]
    names = "steps × ηλ after the change", "effective rate over its equilibrium"
    return [
        FigureExhibit("After LR/10 and WD × 10", *names, traces, log_y=True),
        FigureExhibit("Recovery time", "1/(ηλ)", "steps", points, log_x=True, log_y=True),
    ]


EXPERIMENTS = (
    Experiment(
        id="lla/fig11",
        title="VGG16: time to come back to equilibrium",
        claim="After LR/10 and WD × 10 at once, the steps until the effective rate is back are proportional to 1/(ηλ): "
        "slope 1 on log axes within its error.",
        plan=plan_recovery,
        keep=keep_recovery,
        judge=judge_recovery,
        show=show_recovery,
        choices=(
            *CHOICES,
            "Intrinsic rates and the criterion are not printed: η from 0.1 to 1.6 at λ = 5e-4, and recovered "
            "is 90 % of the effective rate's equilibrium. Before the change 2/(ηλ) steps, after it 2.5/(ηλ).",
            "Recovery of accuracy is not judged: it has no sharp level to come back to within an epoch's noise.",
        ),
    ),
)
