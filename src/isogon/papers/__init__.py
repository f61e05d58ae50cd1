"""The tables and figures of the four papers: what each claims, the trainings that it needs, a verdict on ours."""

from __future__ import annotations

from isogon.papers.reproduction import (
    EXHIBITS,
    SCALES,
    Experiment,
    Judgement,
    Options,
    Planned,
    Reproduction,
    experiments,
    listing,
    reproduce,
)

#: its name in version 0.1, for one version more
Finding = Reproduction

__all__ = [
    "EXHIBITS",
    "SCALES",
    "Experiment",
    "Reproduction",
    "Judgement",
    "Options",
    "Planned",
    "experiments",
    "listing",
    "reproduce",
]
