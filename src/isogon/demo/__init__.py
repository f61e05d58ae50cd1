"""The newcomer's demo: convert a network, see equal tuning factors turn alike, find one on 1/8 of the data."""

from __future__ import annotations

from isogon.demo._plan import GLIMPSE, WHOLE, Size
from isogon.demo._story import run_demo

__all__ = ["GLIMPSE", "WHOLE", "Size", "run_demo"]
