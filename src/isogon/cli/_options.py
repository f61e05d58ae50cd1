"""Checks of options that several commands have."""

from __future__ import annotations

from typing import Any

from isogon.errors import check_choice


def check_engine(name: str | None) -> Any:
    """The engine called `name`, None for the study's or the default one."""
    from isogon.lab import ENGINES

    return None if name is None else check_choice("--engine", name, ENGINES)
