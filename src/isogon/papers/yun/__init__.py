"""Yun et al., On the Angular Update and Hyperparameter Tuning of a Scale-Invariant Network: all experiments."""

from __future__ import annotations

from isogon.papers.yun._figures import EXPERIMENTS

__all__ = ["EXPERIMENTS"]
