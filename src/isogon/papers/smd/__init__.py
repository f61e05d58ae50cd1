"""Wan et al., Spherical Motion Dynamics: all experiments."""

from __future__ import annotations

from isogon.papers.smd._figures import EXPERIMENTS

__all__ = ["EXPERIMENTS"]
