"""The tables and figures of the four papers: what each claims, the trainings that it needs, a verdict on ours."""

from __future__ import annotations

from isogon.papers.reproduction import (
    EXHIBITS,
    SCALES,
    Experiment,
    Finding,
    Judgement,
    Options,
    Planned,
    experiments,
    listing,
    reproduce,
)

__all__ = [
    "EXHIBITS",
    "SCALES",
    "Experiment",
    "Finding",
    "Judgement",
    "Options",
    "Planned",
    "experiments",
    "listing",
    "reproduce",
]
