"""What is known of a run besides its records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

_Kind = TypeVar("_Kind")


#: how the note about a group without a law begins
HAS_NO_LAW = "has no law"


@dataclass(frozen=True)
class RunFacts:
    """What the monitor knew when the run began.

    `silence` is why nothing is predicted at all; `notes` are remarks on single layers, `lawless` the layers that theory
    is not about; `guessed` is True where the radial leak decided which weights have laws; `resolutions` are the angles
    by which rounding alone turns weights in half precision.
    """

    silence: str | None = None
    notes: Mapping[str, str] = field(default_factory=dict)
    lawless: frozenset[str] = frozenset()
    guessed: bool = False
    resolutions: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def read(cls, about: Mapping[str, Any]) -> Self:
        """From what is in run.json, which may be anybody's: what is not of its kind is left out."""
        silence, lawless = about.get("silence"), about.get("lawless")
        return cls(
            silence=silence if isinstance(silence, str) else None,
            notes=_entries(about.get("notes"), str),
            lawless=frozenset(name for name in lawless if isinstance(name, str))
            if isinstance(lawless, list)
            else frozenset(),
            guessed=about.get("guessed") is True,
            resolutions=_entries(about.get("resolutions"), float),
        )


def _entries(value: Any, kind: type[_Kind]) -> dict[str, _Kind]:
    entries = value.items() if isinstance(value, Mapping) else ()
    return {str(name): entry for name, entry in entries if isinstance(entry, kind)}
