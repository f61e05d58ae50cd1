"""What an experiment is, how it is run, judged and kept; the papers build on this, which knows their names alone."""

from __future__ import annotations

from isogon.papers.reproduction._claims import UNKNOWN, Gap, finished, mean_of, points, together, worst
from isogon.papers.reproduction._experiment import (
    SCALES,
    Experiment,
    Judgement,
    Label,
    Options,
    Planned,
    Scale,
    UnavailableError,
    Verdict,
    cell_of,
    curves,
    final,
)
from isogon.papers.reproduction._registry import experiments, listing
from isogon.papers.reproduction._results import Reproduction
from isogon.papers.reproduction._runner import EXHIBITS, reproduce

__all__ = [
    "EXHIBITS",
    "SCALES",
    "UNKNOWN",
    "Experiment",
    "Reproduction",
    "Gap",
    "Judgement",
    "Label",
    "Options",
    "Planned",
    "Scale",
    "UnavailableError",
    "Verdict",
    "cell_of",
    "curves",
    "experiments",
    "final",
    "finished",
    "listing",
    "mean_of",
    "points",
    "reproduce",
    "together",
    "worst",
]
