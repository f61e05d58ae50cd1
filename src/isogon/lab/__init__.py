"""The lab: data, the training loop, and engines that run many trainings. Core rooms never import it."""

from __future__ import annotations

from isogon.lab.config import Config
from isogon.lab.data import Dataset, load
from isogon.lab.engines import run_all
from isogon.lab.lane_group import lanes
from isogon.lab.ray_session import RaySettings
from isogon.lab.runs import Run
from isogon.lab.training import train

__all__ = ["Config", "Dataset", "RaySettings", "Run", "lanes", "load", "run_all", "train"]
