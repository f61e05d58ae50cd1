"""A table or figure beside what a paper prints: as text, page and picture."""

from __future__ import annotations

from isogon.report.exhibit._cells import LEGEND, CellText, cell_texts
from isogon.report.exhibit._exhibits import Cell, Exhibit, FigureExhibit, Line, Place, Showing, TableExhibit
from isogon.report.exhibit._figures import draw_panels
from isogon.report.exhibit._files import write_exhibits
from isogon.report.exhibit._text import MARK, escape_markdown, markdown_table

__all__ = [
    "LEGEND",
    "MARK",
    "Cell",
    "CellText",
    "Exhibit",
    "FigureExhibit",
    "Line",
    "Place",
    "Showing",
    "TableExhibit",
    "cell_texts",
    "draw_panels",
    "escape_markdown",
    "markdown_table",
    "write_exhibits",
]
