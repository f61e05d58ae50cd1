"""The cells of a table as text: ours with its spread, the printed number, the difference, and how many runs were lost.

All forms of a table (terminal, page, paper) use these texts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from isogon.report.exhibit._exhibits import Cell, Place, TableExhibit

#: the text below every table
LEGEND = (
    "Ours ± standard deviation over seeds; below it the printed number and ours − printed. Bold: best in its column. "
    "Marked: the cells that the claim is about."
)


@dataclass(frozen=True)
class CellText:
    """One cell; missing texts are empty."""

    ours: str = ""
    spread: str = ""
    printed: str = ""
    difference: str = ""
    lost: str = ""
    best: bool = False
    marked: bool = False

    @property
    def lines(self) -> list[str]:
        """Ours, its lost runs, and the printed number, one line each."""
        measured = f"{self.ours} ± {self.spread}" if self.spread else self.ours
        compared = f"{self.printed} ({self.difference})" if self.difference else self.printed
        return [line for line in (measured, self.lost, compared) if line]


def cell_texts(table: TableExhibit) -> dict[Place, CellText]:
    """Every place of the table's rows and columns."""
    best = _best_places(table)
    return {
        place: _cell_text(table, place, best=place in best)
        for place in ((row, column) for row in table.rows for column in table.columns)
    }


def _cell_text(table: TableExhibit, place: Place, *, best: bool) -> CellText:
    def number(value: float, sign: str = "") -> str:
        return f"{value:{sign}.{table.digits}f}".replace("-", "−") if math.isfinite(value) else ""

    cell = table.ours.get(place)
    printed = table.printed.get(place, math.nan)
    return CellText(
        ours=number(cell.mean) if cell else "",
        spread=number(cell.spread) if cell else "",
        printed=f"printed {number(printed)}" if math.isfinite(printed) else "",
        difference=number(cell.mean - printed, "+") if cell else "",
        lost=_lost_runs(cell) if cell else "",
        best=best,
        marked=place in table.marked,
    )


def _lost_runs(cell: Cell) -> str:
    """How many runs are missing from the mean.

    >>> _lost_runs(Cell(mean=90.0, spread=0.1, survived=2, runs=4, failed=1)), _lost_runs(Cell(90.0, 0.1, 2, 2))
    ('1 of 4 diverged, 1 of 4 failed', '')
    """
    diverged = cell.runs - cell.survived - cell.failed
    counts = {"diverged": diverged, "failed": cell.failed}
    return ", ".join(f"{count} of {cell.runs} {status}" for status, count in counts.items() if count > 0)


def _best_places(table: TableExhibit) -> set[Place]:
    """The places with our best number in each column that has more than one."""
    if table.best is None:
        return set()
    choose = max if table.best == "highest" else min
    places = set()
    for column in table.columns:
        means = {
            (row, column): table.ours[row, column].mean
            for row in table.rows
            if (row, column) in table.ours and math.isfinite(table.ours[row, column].mean)
        }
        if len(means) > 1:
            top = choose(means.values())
            places |= {place for place, mean in means.items() if mean == top}
    return places
