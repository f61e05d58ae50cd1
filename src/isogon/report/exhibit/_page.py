"""The page of an experiment: the claim, our verdict, tables and figures, and how they were made.

One HTML file that asks nothing of the network; every text is escaped in the markup.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from html import escape
from pathlib import Path

from isogon.report._page_parts import article, asset, write_html
from isogon.report.exhibit._cells import LEGEND, CellText, cell_texts
from isogon.report.exhibit._exhibits import Showing, TableExhibit
from isogon.report.exhibit._figures import plotly_panels

_STYLE = asset("exhibit.css")


def write_exhibit_page(showing: Showing, path: str | os.PathLike[str]) -> Path:
    """Write the page to `path`."""
    return write_html(exhibit_page_text(showing), path)


def exhibit_page_text(showing: Showing) -> str:
    """The whole page; it includes plotly.js if it has figures."""
    title = escape(f"{showing.id}: {showing.title}")
    panels = plotly_panels(showing.figures)
    figures = {f"panel{place}": panel for place, panel in enumerate(panels)}
    places = "".join(f'<div id="{place}" class="figure"></div>' for place in figures)
    body = f"""<h1>{title}</h1>
<p>Claim: {escape(showing.claim)}</p>
<ul class="findings"><li class="{_kind(showing.verdict)}"><b>{escape(showing.verdict)}</b>
 {escape(showing.sentence)}</li></ul>
<div class="recipe">{_numbers(showing)}</div>
{"".join(f"<section><h2>{escape(table.title)}</h2>{_table(table)}</section>" for table in showing.tables)}
{f"<p>{escape(LEGEND)}</p>" if showing.tables else ""}
{f'<section class="figures">{places}</section>' if figures else ""}
{_list("What to know before comparing", showing.notes)}
{_list("How it was made", [f"{name}: {value}" for name, value in showing.made.items()])}"""
    return article(f"{title} · isogon", body, figures, _STYLE)


def _kind(verdict: str) -> str:
    return verdict if verdict in ("holds", "fails") else "warning"


def _numbers(showing: Showing) -> str:
    return "".join(f"<span>{escape(name)} {value:.4g}</span>" for name, value in showing.numbers.items())


def _table(table: TableExhibit) -> str:
    texts = cell_texts(table)
    corner = f"{table.row_name} \\ {table.column_name}" if table.column_name else table.row_name
    head = "".join(f"<th>{escape(text)}</th>" for text in (corner, *table.columns))
    body = "".join(
        f"<tr><th>{escape(row)}</th>{''.join(_cell(texts[row, column]) for column in table.columns)}</tr>"
        for row in table.rows
    )
    return f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(cell: CellText) -> str:
    first, *rest = cell.lines or [""]
    ours = f"<b>{escape(first)}</b>" if cell.best else escape(first)
    below = "".join(f"<br><small>{escape(line)}</small>" for line in rest)
    return f"<td{' class=marked' if cell.marked else ''}>{ours}{below}</td>"


def _list(heading: str, sentences: Sequence[str]) -> str:
    if not sentences:
        return ""
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    return f"<section><h2>{escape(heading)}</h2><ul>{items}</ul></section>"
