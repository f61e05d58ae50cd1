"""Lines of a figure through means over seeds."""

from __future__ import annotations

import pandas as pd

from isogon.report import Line


def mean_line(rows: pd.DataFrame, x: str, y: str, name: str, *, shift: int = 0, dashed: bool = False) -> Line:
    """The mean of column `y` at each value of `x`, over all other columns; `shift` is added to `x`.

    >>> rows = pd.DataFrame({"epoch": [0, 1, 0, 1], "seed": [0, 0, 1, 1], "loss": [2.0, 1.0, 4.0, 1.0]})
    >>> mean_line(rows, "epoch", "loss", "two seeds", shift=1)
    Line(name='two seeds', x=[1, 2], y=[3.0, 1.0], dashed=False)
    """
    means = rows.groupby(x)[y].mean()
    return Line(name, (means.index + shift).tolist(), means.tolist(), dashed=dashed)


def mean_lines(table: pd.DataFrame, x: str, y: str, by: str, *, shift: int = 0) -> list[Line]:
    """One mean line for each value of `by`, in the table's order; rows without a number in `y` are left out.

    >>> table = pd.DataFrame({"row": ["b", "b", "a", "c"], "epoch": [0, 1, 0, 0], "loss": [2.0, 1.0, 3.0, None]})
    >>> [(line.name, line.x, line.y) for line in mean_lines(table, "epoch", "loss", "row")]
    [('b', [0, 1], [2.0, 1.0]), ('a', [0], [3.0])]
    """
    groups = table.dropna(subset=[y]).groupby(by, sort=False)
    return [mean_line(rows, x, y, str(value), shift=shift) for value, rows in groups]
