"""What a paper shows, as data: tables of ours beside the printed numbers, and figures of lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

#: names of a row and a column
Place = tuple[str, str]


@dataclass(frozen=True)
class Cell:
    """The mean over the runs that survived, their spread (standard deviation, NaN for one), and the number of all runs.

    A run that did not survive diverged, or is one of the `failed` ones, which an error ended.
    """

    mean: float
    spread: float
    survived: int
    runs: int
    failed: int = 0


@dataclass(frozen=True)
class TableExhibit:
    """A table in the paper's layout: `ours` and the `printed` numbers by place; `marked` are the cells of the claim.

    The `best` number of each column is the highest or the lowest; None where the numbers are no scores.
    """

    title: str
    row_name: str
    column_name: str
    rows: Sequence[str]
    columns: Sequence[str]
    ours: Mapping[Place, Cell]
    printed: Mapping[Place, float] = field(default_factory=dict)
    marked: frozenset[Place] = frozenset()
    #: digits after the point
    digits: int = 2
    best: Literal["highest", "lowest"] | None = "highest"


@dataclass(frozen=True)
class Line:
    """One curve; `dashed` ones are theory or reference."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    dashed: bool = False


@dataclass(frozen=True)
class FigureExhibit:
    """One panel of a figure."""

    title: str
    x_name: str
    y_name: str
    lines: Sequence[Line]
    log_x: bool = False
    log_y: bool = False


Exhibit = TableExhibit | FigureExhibit


@dataclass(frozen=True)
class Showing:
    """An experiment as it is shown: the claim, our result, and how it was made.

    `made` are facts by name (command, hardware, date …), `numbers` those behind the verdict, and `notes` what the
    reader must know before comparing.
    """

    id: str
    title: str
    claim: str
    verdict: str
    sentence: str
    exhibits: Sequence[Exhibit] = ()
    numbers: Mapping[str, float] = field(default_factory=dict)
    notes: Sequence[str] = ()
    made: Mapping[str, str] = field(default_factory=dict)

    @property
    def tables(self) -> list[TableExhibit]:
        return [exhibit for exhibit in self.exhibits if isinstance(exhibit, TableExhibit)]

    @property
    def figures(self) -> list[FigureExhibit]:
        return [exhibit for exhibit in self.exhibits if isinstance(exhibit, FigureExhibit)]
