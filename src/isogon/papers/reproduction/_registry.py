"""`experiments`: all that can be reproduced, by id, in the papers' order."""

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
    return {one.id: one for module in modules for one in module.EXPERIMENTS}


def chosen(ids: Iterable[str]) -> list[Experiment]:
    """The experiments with these ids, each once."""
    known = experiments()
    for wanted in ids:
        if wanted not in known:
            near = difflib.get_close_matches(wanted, known, n=3, cutoff=0.5)
            cure = f"did you mean {' or '.join(near)}?" if near else "see isogon reproduce --list"
            raise ArgumentError("experiment", "an id of isogon reproduce --list", wanted, cure.rstrip("?"))
    return [known[wanted] for wanted in dict.fromkeys(ids)]


def listing() -> list[dict[str, Any]]:
    """Every experiment with its claim, the training images that it takes as printed, and where we have results."""
    return [
        {
            "id": one.id,
            "paper": PAPERS[one.id.split("/")[0]],
            "title": one.title,
            "claim": one.claim,
            "images": one.images("paper"),
            "unavailable": one.unavailable,
            "results": scales_in(COMMITTED, one.id),
        }
        for one in experiments().values()
    ]
