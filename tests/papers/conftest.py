"""Experiments that train in a second: a table, a figure on the same runs, and one that is only computed."""

from __future__ import annotations

import pandas as pd
import pytest

from isogon import Recipe
from isogon.lab import Config
from isogon.papers.reproduction._experiment import Experiment, Judgement, Planned, cell_of, curves, final_row
from isogon.report.exhibit._exhibits import FigureExhibit, Line, TableExhibit


@pytest.fixture
def mostly_undecided():
    """Whether most of twenty noisy tables, judged by a function of the draw, leave a claim open; hardly any confirm it.

    Noise may look like a difference once in a while: one table alone would be a matter of the seed. Where it confirms
    one in twenty, more than six of twenty do so once in 30,000 times.
    """

    def holds(judged):
        verdicts = [judged(draw) for draw in range(20)]
        return verdicts.count("undecided") > 10 and verdicts.count("holds") <= 6

    return holds


def config(weight_decay, seed, **changes):
    recipe = Recipe(lr=0.1, weight_decay=weight_decay, batch_size=50, samples=100, epochs=1)
    fields = {"net_options": {"width": 4, "scale_invariant": "affine"}, "data": "fashion-mini", "augmentation": "none"}
    return Config(recipe=recipe, net="cnn4", **{**fields, "seed": seed, "save_weights": False, **changes})


def grid(options):
    seeds = options.seeds or 1
    return [
        Planned(config(weight_decay, seed), {"panel": panel, "row": f"{weight_decay:g}", "column": 100, "seed": seed})
        for panel, decays in {"a": (1e-3, 1e-2), "bc": (1e-2,)}.items()
        for weight_decay in decays
        for seed in range(seeds)
    ]


def table_of(rows):
    cells = {(row, "100"): cell_of(those, unit=100) for row, those in rows.groupby("row")}
    return [TableExhibit("Accuracy", "decay", "samples", ["0.001", "0.01"], ["100"], cells)]


def figure_of(rows):
    lines = [Line(name, list(those.epoch), list(those.train_loss)) for name, those in rows.groupby("row")]
    return [FigureExhibit("Loss", "epoch", "loss", lines)]


def judged(rows):
    return Judgement("holds", f"{len(rows)} rows.", {"rows": len(rows)})


@pytest.fixture
def toys():
    """By id: `yun/table`, `yun/figure` on the same runs, `la/computed`."""
    shared = {"title": "A toy", "claim": "It runs.", "judge": judged}
    computed = pd.DataFrame({"panel": ["a", "b"], "value": [1.0, 2.0]})
    made = [
        Experiment("yun/table", show=table_of, plan=grid, keep=final_row, choices=["the batch size"], **shared),
        Experiment("yun/figure", show=figure_of, plan=grid, keep=curves, **shared),
        Experiment("la/computed", show=lambda rows: [], compute=lambda options: computed, **shared),
    ]
    return {experiment.id: experiment for experiment in made}


@pytest.fixture
def toy_config():
    return config


@pytest.fixture
def toy_registry(toys, monkeypatch):
    """The command line knows the toys and nothing else."""
    monkeypatch.setattr("isogon.papers.reproduction._registry.experiments", lambda: toys)
    return toys
