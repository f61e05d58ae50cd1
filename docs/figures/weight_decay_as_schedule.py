"""Draws docs/images/weight-decay-as-schedule.png: weight decay against EXP with and without rebasing, in float32.

    python docs/figures/weight_decay_as_schedule.py [FILE]

A small scale-invariant network on noisy patterns at a raised ηλ, so that the overflow comes within a thousand steps.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import nn
from torch.nn import functional

from isogon import IsogonError, schedules
from isogon.optim import drive

LR, WEIGHT_DECAY, MOMENTUM, STEPS = 0.1, 0.02, 0.9, 3000
TARGET = Path(__file__).parents[1] / "images" / "weight-decay-as-schedule.png"


def run(schedule: schedules.Schedule, *, rebase: bool) -> dict[str, list[float]]:
    """Loss, norm and effective learning rate step by step, until the end or until the rate leaves float32."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(12, 16, bias=False),
        nn.BatchNorm1d(16, affine=False),
        nn.ReLU(),
        nn.Linear(16, 16, bias=False),
        nn.BatchNorm1d(16, affine=False),
        nn.Linear(16, 4).requires_grad_(False),
    )
    weights = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(weights, lr=1.0, momentum=MOMENTUM)
    driver = drive(optimizer, schedule, rebase=rebase)
    centres = torch.randn(4, 12)
    out: dict[str, list[float]] = {"loss": [], "norm": [], "effective learning rate": []}
    for _ in range(STEPS):
        labels = torch.randint(0, 4, (32,))
        loss = functional.cross_entropy(model(centres[labels] + 1.5 * torch.randn(32, 12)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        norm = float(torch.cat([w.detach().double().flatten() for w in weights]).norm())
        out["loss"].append(float(loss.detach()))
        out["norm"].append(norm)
        out["effective learning rate"].append(optimizer.param_groups[0]["lr"] / norm**2)
        try:
            driver.step()
        except IsogonError as error:
            print(error)
            break
    return out


def smooth(values: list[float], window: int = 50) -> list[float]:
    return [
        sum(values[max(0, i - window) : i + 1]) / len(values[max(0, i - window) : i + 1]) for i in range(len(values))
    ]


def main(target: str | Path = TARGET) -> None:
    ordinary = schedules.constant(LR, WEIGHT_DECAY)
    exponential = schedules.exp_lr(ordinary, momentum=MOMENTUM)
    runs = {
        "weight decay": run(ordinary, rebase=False),
        "EXP, rebased": run(exponential, rebase=True),
        "EXP, not rebased": run(exponential, rebase=False),
    }
    figure = Figure(figsize=(11, 3.4), layout="constrained")
    for ax, name in zip(figure.subplots(1, 3), ("loss", "norm", "effective learning rate"), strict=True):
        for (label, run_values), style in zip(runs.items(), ("-", "--", ":"), strict=True):
            values = smooth(run_values[name]) if name == "loss" else run_values[name]
            ax.plot(values, style, label=label, linewidth=2)
        ends = len(runs["EXP, not rebased"][name])
        ax.axvline(ends, color="0.6", linewidth=1)
        ax.annotate("float32 ends", (ends, 0.5), xycoords=("data", "axes fraction"), rotation=90, ha="left", fontsize=8)
        ax.set_title(name, fontsize=10, loc="left")
        ax.set_xlabel("step")
        ax.set_yscale("log")
        ax.grid(visible=True, alpha=0.3)
    handles, labels = ax.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(target, dpi=130)


if __name__ == "__main__":
    main(*sys.argv[1:2])
