"""`study_template`: a study file to start from, with every key and what it is for; it runs as it is."""

from __future__ import annotations

from importlib.resources import files


def study_template() -> str:
    """The text of `study.toml`, which ships beside this module."""
    return (files("isogon.search") / "study.toml").read_text(encoding="utf-8")
