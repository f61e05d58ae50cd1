"""Li and Arora, An Exponential Learning Rate Schedule for Deep Learning: all experiments."""

from __future__ import annotations

from isogon.papers.la._figures import EXPERIMENTS, TINY

__all__ = ["EXPERIMENTS", "TINY"]
