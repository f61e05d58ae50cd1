"""Data sets in memory: `load` by name, with class-balanced nested subsets and a fingerprint."""

from __future__ import annotations

from isogon.lab.data.arrays import DamagedDataError, MissingDataError
from isogon.lab.data.loading import NAMES, Dataset, check_name, load

__all__ = ["NAMES", "DamagedDataError", "Dataset", "MissingDataError", "check_name", "load"]
