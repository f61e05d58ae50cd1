"""What an experiment is, how it is run, judged and kept; the papers build on this, which knows only their names."""

from __future__ import annotations

from isogon.papers.reproduction._claims import UNKNOWN, Gap, combine, finished_rows, mean_of, points, worst_verdict
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
    final_row,
)
from isogon.papers.reproduction._lines import mean_line, mean_lines
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
    "combine",
    "curves",
    "experiments",
    "final_row",
    "finished_rows",
    "listing",
    "mean_line",
    "mean_lines",
    "mean_of",
    "points",
    "reproduce",
    "worst_verdict",
]
