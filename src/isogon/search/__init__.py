"""Search on a fraction of the data, then transfer: studies, their trials, the fit, and the outcome."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isogon.search.objective import Pruned as Pruned
    from isogon.search.objective import Trial as Trial
    from isogon.search.outcome import Outcome as Outcome
    from isogon.search.running import run as run
    from isogon.search.study import Study as Study

_PLACES = {"Study": "study", "Outcome": "outcome", "run": "running", "Trial": "objective", "Pruned": "objective"}
__all__ = ["Outcome", "Pruned", "Study", "Trial", "run"]


def __getattr__(name: str) -> Any:
    # Loaded when asked for: the fit needs numpy alone, the rest optuna and pydantic.
    if name in _PLACES:
        from importlib import import_module

        return getattr(import_module(f"isogon.search.{_PLACES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
