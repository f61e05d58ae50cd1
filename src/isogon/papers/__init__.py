"""The tables and figures of the four papers: what each claims, the trainings that it needs, a verdict on ours."""

from __future__ import annotations

from isogon.papers.experiment import Experiment, Judgement, Options, Planned
from isogon.papers.registry import experiments

__all__ = ["Experiment", "Judgement", "Options", "Planned", "experiments"]
