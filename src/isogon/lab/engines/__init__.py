"""Many trainings: processes on this machine, lanes of one GPU, or a Ray cluster."""

from __future__ import annotations

from isogon.lab.engines._pools import ENGINES, Engine, kept_ready, pool_for
from isogon.lab.engines._run_all import run_all
from isogon.lab.engines._workers import Say
from isogon.lab.engines.ray import RaySettings

__all__ = ["ENGINES", "Engine", "RaySettings", "Say", "kept_ready", "pool_for", "run_all"]
