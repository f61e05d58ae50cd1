"""isogon: train normalised networks by how fast their weights turn.

The public names load on first use, so that `import isogon` costs neither torch nor pandas.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# Public name → the room it lives in.
_NAMES = {
    "Recipe": "isogon.recipe",
    "Transfer": "isogon.recipe",
    "Motion": "isogon.theory",
    "IsogonError": "isogon.errors",
    "Monitor": "isogon.dynamics",
    "ScaleMap": "isogon.symmetry",
    "check": "isogon.symmetry",
    "Conversion": "isogon.nets",
    "convert": "isogon.nets",
}
_ROOMS = (
    "theory",
    "schedules",
    "predict",
    "errors",
    "recipe",
    "report",
    "symmetry",
    "nets",
    "dynamics",
    "optim",
    "integrations",
    "lab",
    "search",
    "papers",
)

__all__ = ["__version__", *_NAMES, *_ROOMS]


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(import_module(_NAMES[name]), name)
    if name in _ROOMS:
        return import_module(f"isogon.{name}")
    raise AttributeError(f"module 'isogon' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
