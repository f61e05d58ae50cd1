"""isogon: train normalised networks by how fast their weights turn.

The public names load on first use, so that `import isogon` costs neither torch nor pandas. Type checkers and editors
see them through the imports below, which are not run.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isogon import dynamics as dynamics
    from isogon import errors as errors
    from isogon import integrations as integrations
    from isogon import lab as lab
    from isogon import nets as nets
    from isogon import optim as optim
    from isogon import papers as papers
    from isogon import predict as predict
    from isogon import recipe as recipe
    from isogon import report as report
    from isogon import schedules as schedules
    from isogon import search as search
    from isogon import symmetry as symmetry
    from isogon import theory as theory
    from isogon.dynamics import Monitor as Monitor
    from isogon.errors import IsogonError as IsogonError
    from isogon.nets import Conversion as Conversion
    from isogon.nets import convert as convert
    from isogon.recipe import Recipe as Recipe
    from isogon.recipe import Transfer as Transfer
    from isogon.symmetry import ScaleMap as ScaleMap
    from isogon.symmetry import Symmetries as Symmetries
    from isogon.symmetry import check as check
    from isogon.symmetry import symmetries as symmetries
    from isogon.theory import Motion as Motion

__version__ = "0.1.0"

# Public name → the room it lives in. A test compares this with the imports above.
_NAMES = {
    "Recipe": "recipe",
    "Transfer": "recipe",
    "Motion": "theory",
    "IsogonError": "errors",
    "Monitor": "dynamics",
    "ScaleMap": "symmetry",
    "Symmetries": "symmetry",
    "check": "symmetry",
    "symmetries": "symmetry",
    "Conversion": "nets",
    "convert": "nets",
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

if not TYPE_CHECKING:  # or every misspelt name would be Any

    def __getattr__(name: str) -> Any:
        if name in _NAMES:
            return getattr(import_module(f"isogon.{_NAMES[name]}"), name)
        if name in _ROOMS:
            return import_module(f"isogon.{name}")
        raise AttributeError(f"module 'isogon' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
