"""`experiments`: everything that can be reproduced, by id, in the papers' order."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

from isogon.errors import ArgumentError
from isogon.papers.reproduction._experiment import Experiment
from isogon.papers.reproduction._results import scales_in

#: results that belong to the project; only a checkout has them
COMMITTED = Path(__file__).parents[4] / "results"
PAPERS = {
    "yun": "Yun et al., On the Angular Update and Hyperparameter Tuning of a Scale-Invariant Network",
    "lla": "Li, Lyu and Arora, Reconciling Modern Deep Learning with Traditional Optimization Analyses",
    "la": "Li and Arora, An Exponential Learning Rate Schedule for Deep Learning",
    "smd": "Wan et al., Spherical Motion Dynamics",
}


def experiments() -> dict[str, Experiment]:
    """Every experiment of the four papers by its id."""
    modules = [import_module(f"isogon.papers.{paper}") for paper in PAPERS]
    return {experiment.id: experiment for module in modules for experiment in module.EXPERIMENTS}


def find_experiments(ids: Iterable[str]) -> list[Experiment]:
    """The experiments with these ids, each once."""
    by_id = experiments()
    for identity in ids:
        if identity not in by_id:
            near = difflib.get_close_matches(identity, by_id, n=3, cutoff=0.5)
            cure = f"did you mean {' or '.join(near)}?" if near else "see isogon reproduce --list"
            raise ArgumentError("experiment", "an id of isogon reproduce --list", identity, cure.rstrip("?"))
    return [by_id[identity] for identity in dict.fromkeys(ids)]


def listing() -> list[dict[str, Any]]:
    """Every experiment with its claim, the training images that it takes as printed, and where we have results."""
    return [
        {
            "id": experiment.id,
            "paper": PAPERS[experiment.id.split("/")[0]],
            "title": experiment.title,
            "claim": experiment.claim,
            "images": experiment.images("paper"),
            "unavailable": experiment.unavailable,
            "results": scales_in(COMMITTED, experiment.id),
        }
        for experiment in experiments().values()
    ]
