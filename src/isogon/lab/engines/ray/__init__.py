"""The engine of a Ray cluster: its session, its pool of tasks, and what runs within a task."""

from __future__ import annotations

from isogon.lab.engines.ray._pool import work_through_on_ray
from isogon.lab.engines.ray._session import RaySettings, ray_kept

__all__ = ["RaySettings", "ray_kept", "work_through_on_ray"]
