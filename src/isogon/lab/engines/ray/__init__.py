"""The engine of a Ray cluster: its session, its pool of tasks, and what runs within a task."""

from __future__ import annotations

from isogon.lab.engines.ray._engine import RayEngine
from isogon.lab.engines.ray._session import RaySettings

__all__ = ["RayEngine", "RaySettings"]
