"""Modules whose doctests are left out where what they are written in is not installed."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore = [] if find_spec("triton") else ["src/isogon/dynamics/fused_sums.py"]
