"""How experiments and their results look on a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from isogon.papers import Reproduction
from isogon.report import LEGEND, CellText, TableExhibit, cell_texts

_STYLES = {"holds": "bold green", "fails": "bold red", "undecided": "bold yellow", "not run": "bold"}
_MARKED = "black on yellow"


def show_reproductions(reproductions: Sequence[Reproduction]) -> None:
    """Each experiment's tables and verdict; then how many claims hold."""
    console = Console(highlight=False, markup=False)
    for reproduction in reproductions:
        showing = reproduction.showing
        console.print(Text(f"{showing.id}: {showing.title}", style="bold"))
        for table in showing.tables:
            console.print(_table(table))
        if showing.tables:
            console.print(Text(LEGEND, style="dim"))
        console.print(Text(f"Claim: {showing.claim}"))
        console.print(Text.assemble((showing.verdict, _STYLES[showing.verdict]), f": {showing.sentence}"))
        console.print()
    counts: Counter[str] = Counter(reproduction.judgement.verdict for reproduction in reproductions)
    if len(reproductions) > 1:
        console.print(", ".join(f"{counts[verdict]} {verdict}" for verdict in _STYLES if counts[verdict]))


def show_list(listing: Sequence[Mapping[str, Any]]) -> None:
    """One row per experiment."""
    console = Console(highlight=False, markup=False)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("id", "title", "claim"):
        table.add_column(heading, overflow="fold")
    table.add_column("images at paper scale", justify="right")
    table.add_column("results at")
    for experiment in listing:
        images = f"{experiment['images']:.2g}" if experiment["images"] else "–"
        texts = (
            experiment["id"],
            experiment["title"],
            experiment["claim"],
            images,
            ", ".join(experiment["results"]) or "–",
        )
        table.add_row(*map(Text, texts))
    console.print(table)


def _table(table: TableExhibit) -> Table:
    texts = cell_texts(table)
    shown = Table(title=Text(table.title), title_justify="left", pad_edge=False, header_style="bold")
    shown.add_column(Text(f"{table.row_name} \\ {table.column_name}" if table.column_name else table.row_name))
    for column in table.columns:
        shown.add_column(Text(column), justify="right")
    for row in table.rows:
        shown.add_row(Text(row), *(_cell(texts[row, column]) for column in table.columns))
    return shown


def _cell(cell: CellText) -> Text:
    first, *rest = cell.lines or [""]
    style = " ".join(name for name, wanted in (("bold", cell.best), (_MARKED, cell.marked)) if wanted)
    return Text("\n").join([Text(first, style=style), *(Text(line, style="dim") for line in rest)])
