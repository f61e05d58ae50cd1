"""Rows of the record as named numbers, for the places that show curves."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from isogon.dynamics import SCHEMA

#: the columns that are numbers to draw; all but those that locate the row
QUANTITIES = tuple(name for name in SCHEMA if name not in ("step", "epoch", "layer"))


def scalar_name(layer: str, quantity: str) -> str:
    """The name under which a dashboard shows it.

    >>> scalar_name("all", "step_angle")
    'isogon/all/step_angle'
    """
    return f"isogon/{layer}/{quantity}"


def scalars_by_step(rows: pd.DataFrame) -> Iterator[tuple[int, dict[str, float]]]:
    """Each step of `rows` with its numbers by name; what is not a finite number is left out."""
    numbers = rows[list(QUANTITIES)].astype("float64").to_numpy()
    finite = np.isfinite(numbers)
    layers = rows["layer"].tolist()
    for step, places in rows.groupby("step").indices.items():
        numbers_by_name = {
            scalar_name(layers[place], quantity): float(numbers[place, column])
            for place in places
            for column, quantity in enumerate(QUANTITIES)
            if finite[place, column]
        }
        yield int(str(step)), numbers_by_name
