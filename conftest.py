"""Modules whose doctests are left out where what they are written in is not installed."""

from __future__ import annotations

from importlib.util import find_spec

_TRITON = ["src/isogon/dynamics/fused_sums.py", "src/isogon/lab/fused/*.py"]
collect_ignore_glob = [] if find_spec("triton") else _TRITON
