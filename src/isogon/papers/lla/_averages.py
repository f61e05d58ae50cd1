"""Figures 6 and 7: averages of two networks of one trajectory are better, yet the two are far apart."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import pandas as pd
import torch

from isogon.dynamics import averages, measures
from isogon.lab import Run, Training, default_device, evaluate
from isogon.papers.lla._judging import numbers_of, rank_correlation, too_little_to_judge
from isogon.papers.lla._setup import CHOICES, config, decay_of
from isogon.papers.reproduction import (
    Experiment,
    Gap,
    Judgement,
    Options,
    Planned,
    Scale,
    Verdict,
    mean_line,
    points,
    worst_verdict,
)
from isogon.report import Exhibit, FigureExhibit

StateDict = Mapping[str, torch.Tensor]

#: epochs, and the epochs between two snapshots; snapshots of the first quarter of the run are left out
LENGTHS: dict[Scale, tuple[int, int]] = {"paper": (8000, 1000), "small": (120, 20), "tiny": (5, 1)}
#: the largest distance counts as large from the first share of the norm on, and as small below the second
_OF_ITS_SIZE, _SMALL = 0.5, 0.25


def plan_run(momentum: float, options: Options) -> list[Planned]:
    """One run at a fixed rate, unless more seeds are asked for."""
    scale = options.scale
    epochs, every = LENGTHS[scale]
    made = config(
        scale,
        lr=0.1 if momentum else 0.4,
        weight_decay=decay_of(scale) / (4 if momentum and scale == "tiny" else 1),
        momentum=momentum,
        epochs=epochs,
        monitor_every=0,
        test_every=0,
        snapshot_every=every,
    )
    return [Planned(replace(made, seed=seed), {"column": "snapshots", "seed": seed}) for seed in options.seed_range(1)]


def pairs(run: Run) -> pd.DataFrame:
    """One row per pair of snapshots: distance, norm, accuracies of both and of the average."""
    states: dict[int, StateDict] = {
        epoch: torch.load(file, map_location="cpu", weights_only=True)
        for epoch, file in run.snapshots.items()
        if 4 * epoch >= run.config.epochs
    }
    trial = Training(run.config, device=default_device())
    trained = [name for name, weight in trial.model.named_parameters() if weight.requires_grad]
    alone = {epoch: _accuracy(trial, state) for epoch, state in states.items()}
    rows = []
    for first, second in itertools.combinations(states, 2):
        sides = [[states[epoch][name] for name in trained] for epoch in (first, second)]
        rows.append(
            {
                "first": first,
                "second": second,
                "distance": measures.distance(*sides),
                "norm": math.sqrt(measures.norm(sides[0]) * measures.norm(sides[1])),
                "first_accuracy": alone[first],
                "second_accuracy": alone[second],
                "average_accuracy": _accuracy(trial, averages.average_weights([states[first], states[second]])),
            }
        )
    trial.close()
    return pd.DataFrame(rows).assign(status=run.status)


def _accuracy(trial: Training, state: StateDict) -> float:
    """Test accuracy of weights, with normalisation statistics of one epoch of training images."""
    trial.model.load_state_dict(state)
    trial.begin_epoch()
    with trial.autocast():
        averages.reestimate_statistics(trial.model, (x for x, _ in trial.batches()))
        data = trial.data
        _, accuracy = evaluate(trial.model, data.test_x, data.test_y, trial.prepare_test, trial.ranks)
    return accuracy


def judge_pairs(table: pd.DataFrame) -> Judgement:
    """The average beats the mean of its two networks; the distance grows with time to the size of a norm."""
    if len(table) < 3:
        return too_little_to_judge("fewer than three pairs of snapshots")
    gains = table["average_accuracy"] - (table["first_accuracy"] + table["second_accuracy"]) / 2
    # Pairs share networks: as many are independent as there are networks, not pairs.
    ends = [table[["seed", end]].set_axis(["seed", "epoch"], axis=1) for end in ("first", "second")]
    networks = len(pd.concat(ends).drop_duplicates())
    gain = Gap(float(gains.mean()), float(gains.std() / math.sqrt(networks)))
    apart = table["second"] - table["first"]
    near, far = (table.loc[apart == when, "distance"].mean() for when in (apart.min(), apart.max()))
    ratio = float((table["distance"] / table["norm"]).max())
    rank = rank_correlation(apart, table["distance"])
    grows: Verdict = "holds" if far > near and rank > 0 else "fails"
    large: Verdict = "holds" if ratio >= _OF_ITS_SIZE else "fails" if ratio < _SMALL else "undecided"
    verdict = worst_verdict([gain.above(), grows, large])
    sentence = (
        f"Averages gain {points(gain)} (worst {100 * gains.min():.2f}); distances go from {near:.3g} to {far:.3g}, "
        f"at most {ratio:.2f} of the norm."
    )
    numbers = {"worst gain": float(gains.min()), "largest distance over norm": ratio, "rank correlation": rank}
    return Judgement(verdict, sentence, {**numbers_of({"gain": gain}), **numbers})


def show_pairs(table: pd.DataFrame) -> list[Exhibit]:
    alone = pd.concat(
        [table[[end, f"{end}_accuracy"]].set_axis(["epoch", "accuracy"], axis=1) for end in ("first", "second")]
    )
    accuracies = [mean_line(alone, "epoch", "accuracy", "alone", dashed=True)]
    distances = []
    for first, rows in table.groupby("first"):
        accuracies.append(mean_line(rows, "second", "average_accuracy", f"averaged with epoch {first}"))
        distances.append(mean_line(rows, "second", "distance", f"from epoch {first}"))
    distances.append(mean_line(table, "second", "norm", "norm", dashed=True))
    return [
        FigureExhibit("Averages of two networks", "epoch", "test accuracy", accuracies),
        FigureExhibit("Distance between two networks", "epoch", "‖w − w'‖", distances),
    ]


def _experiment(number: int, momentum: float, title: str) -> Experiment:
    return Experiment(
        id=f"lla/fig{number}",
        title=f"Averages of, and distances between, networks of one trajectory of {title}",
        claim="Averaging any two networks of the trajectory improves test accuracy (vanilla SGD: some 4 points); their "
        "distance keeps growing and is as large as their norm, so that they are not near one minimum.",
        plan=partial(plan_run, momentum),
        keep=pairs,
        judge=judge_pairs,
        show=show_pairs,
        choices=(
            *CHOICES,
            "Rates are not printed: η = 0.4 (0.1 with momentum 0.9), λ = 5e-4. Snapshots every 1,000 epochs from 2,000 "
            "to 8,000; normalisation statistics of each network from an epoch of augmented training images.",
        ),
    )


EXPERIMENTS = (_experiment(6, 0.0, "vanilla SGD"), _experiment(7, 0.9, "momentum SGD"))
