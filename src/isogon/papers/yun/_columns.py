"""The verdict on a table of Yun et al., and how it is shown.

A column is judged by the means over its seeds. Two cells differ clearly where their means are more than two standard
errors apart, the noise of one run being that of `search.fit_curve`: the spread over seeds, or with one seed what a
parabola leaves over (the column's own or the table's median, whichever is larger, since few cells may fit by chance).
Where one missed column fails a whole table, a miss must be clearer the more cells there are: the chance that noise
alone gives one is shared among them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from statistics import NormalDist, median
from typing import Literal

import pandas as pd

from isogon.papers.reproduction import Judgement, Verdict, cell_of
from isogon.papers.yun._grids import Varied
from isogon.report import Cell, TableExhibit
from isogon.search import fit_curve

ColumnVerdict = Literal["met", "missed", "open"]
#: standard errors that make a difference clear
CLEAR = 2.0


class Column:
    """The cells of one column by their tuning factor over the stated one, and which of them clearly differ."""

    def __init__(self, rows: pd.DataFrame) -> None:
        ended = rows[rows["status"] != "failed"]
        self.cells: dict[float, Cell] = {
            float(str(factor)): cell_of(cell, unit=100) for factor, cell in ended.groupby("factor")
        }
        self.noise, self.from_seeds = math.nan, False
        if sum(cell.survived > 0 for cell in self.cells.values()) >= 3:
            points = zip(ended["factor"], ended["seed"], 100 * ended["accuracy"], strict=True)
            curve = fit_curve(points, bootstrap=100)
            self.from_seeds = curve.noise_from == "seeds"
            self.noise = curve.noise if curve.noise_from != "nothing" else math.nan

    def mean(self, factor: float) -> float:
        """Minus infinity where all runs diverged."""
        cell = self.cells[factor]
        return cell.mean if cell.survived else -math.inf

    @property
    def best(self) -> float:
        return max(self.cells, key=self.mean)

    def exceeds(self, higher: float, lower: float, clear: float = CLEAR) -> bool:
        """Whether `higher` has a mean above that of `lower` by more than `clear` standard errors."""
        runs = [max(self.cells[factor].survived, 1) for factor in (higher, lower)]
        gap = self.mean(higher) - self.mean(lower)
        return gap > clear * self.noise * math.sqrt(sum(1 / count for count in runs))


def columns_of(table: pd.DataFrame) -> dict[tuple[str, str], Column]:
    """Every column by its panel and name."""
    columns = {(str(p), str(name)): Column(rows) for (p, name), rows in table.groupby(["panel", "column"])}
    alone = [column for column in columns.values() if not (column.from_seeds or math.isnan(column.noise))]
    usual = median(column.noise for column in alone) if alone else math.nan
    for column in alone:
        column.noise = max(column.noise, usual)
    return columns


def clear_among(differences: int) -> float:
    """The standard errors that this many differences exceed together as rarely as a single one exceeds `CLEAR`."""
    normal = NormalDist()
    return normal.inv_cdf(1 - normal.cdf(-CLEAR) / max(differences, 1))


def judge_column(column: Column, clear_miss: float = CLEAR) -> ColumnVerdict:
    """Whether the cell of the stated factor is best or second and the best cell within a factor of 2 of it.

    Missed: two cells are better, or one farther than a factor of 2 beats all nearer ones, by `clear_miss` standard
    errors. Met: neither, by the means, and the cell is clearly better than every one farther away. Open: the noise, or
    too few cells.
    """
    if 1.0 not in column.cells or math.isnan(column.noise):
        return "open"
    others = [factor for factor in column.cells if factor != 1.0]
    near = [factor for factor in column.cells if 0.5 <= factor <= 2]
    far = [factor for factor in others if factor not in near]
    beaten_by_two = sum(column.exceeds(other, 1.0, clear_miss) for other in others) > 1
    if beaten_by_two or any(all(column.exceeds(factor, other, clear_miss) for other in near) for factor in far):
        return "missed"
    second = sum(column.mean(other) > column.mean(1.0) for other in others) <= 1
    beats_far = far and all(column.exceeds(1.0, factor) for factor in far)
    return "met" if second and column.best in near and beats_far else "open"


def judge_table(
    table: pd.DataFrame, *, every: bool = True, counts: Callable[[str], bool] = lambda column: True
) -> Judgement:
    """The verdict over the columns that count.

    `every` column must not miss, and more than half must be met; otherwise more than half decide either way.
    """
    outcomes: Counter[ColumnVerdict] = Counter()
    second = 0
    columns = [column for (_, name), column in columns_of(table).items() if counts(name)]
    clear_miss = clear_among(sum(len(column.cells) - 1 for column in columns)) if every else CLEAR
    for column in columns:
        outcomes[judge_column(column, clear_miss)] += 1
        second += 1.0 in column.cells and sum(column.mean(f) > column.mean(1.0) for f in column.cells) <= 1
    total = outcomes.total()
    met, missed = outcomes["met"], outcomes["missed"]
    verdict: Verdict = "undecided"
    if (missed > 0) if every else (2 * missed > total):
        verdict = "fails"
    elif 2 * met > total:
        verdict = "holds"
    sentence = (
        f"The cell of the stated tuning factor is best or second in {second} of {total} columns; with the noise taken "
        f"into account {met} columns meet the rule, {missed} miss it and {outcomes['open']} cannot be told."
    )
    numbers = {"columns": total, "best_or_second": second, "met": met, "missed": missed, "open": outcomes["open"]}
    return Judgement(verdict, sentence, {name: float(value) for name, value in numbers.items()})


def show_table(
    table: pd.DataFrame, *, title: str, varied: Varied, row_name: str = "η / λ", single: bool = False
) -> list[TableExhibit]:
    """One table per panel, in the printed order of rows and columns; `single` is a table without panels."""
    exhibits = []
    for panel, rows in table.groupby("panel"):
        names = rows.drop_duplicates("row").sort_values("octave", ascending=False)["row"].astype(str)
        columns = sorted(rows["column"].astype(str).unique(), key=int, reverse=varied == "batch_size")
        cells = {(str(row), str(column)): cell for (row, column), cell in rows.groupby(["row", "column"])}
        printed: Mapping[tuple[str, str], float] = {}
        if "printed" in rows:
            values = {place: float(cell["printed"].iloc[0]) for place, cell in cells.items()}
            printed = {place: value for place, value in values.items() if not math.isnan(value)}
        exhibits.append(
            TableExhibit(
                title=title if single else f"{title} ({panel})",
                row_name=row_name,
                column_name="N" if varied == "samples" else "B",
                rows=list(names),
                columns=columns,
                ours={place: cell_of(cell, unit=100) for place, cell in cells.items()},
                printed=printed,
                marked=frozenset(place for place, cell in cells.items() if cell["factor"].iloc[0] == 1.0),
            )
        )
    return exhibits
