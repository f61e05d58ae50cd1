"""Data sets in memory: `load` by name, with class-balanced nested subsets and a fingerprint."""

from __future__ import annotations

from isogon.lab.data._arrays import DamagedDataError, MissingDataError, require_package
from isogon.lab.data._loading import NAMES, Dataset, check_name, data_root, load
from isogon.lab.data._text import is_text

__all__ = [
    "NAMES",
    "DamagedDataError",
    "Dataset",
    "MissingDataError",
    "check_name",
    "data_root",
    "is_text",
    "load",
    "require_package",
]
