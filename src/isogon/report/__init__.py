"""Numbers first, then pictures; this room draws what others computed."""

from __future__ import annotations

from isogon.report._drawing import STATIC, check_target
from isogon.report._page_parts import plotly_script
from isogon.report._predicted_runs import check_plot_path, draw_runs
from isogon.report.demo import AngleCurve, DemoSummary, write_demo_page
from isogon.report.exhibit import (
    LEGEND,
    MARK,
    Cell,
    CellText,
    Exhibit,
    FigureExhibit,
    Line,
    Place,
    Showing,
    TableExhibit,
    cell_texts,
    draw_panels,
    escape_markdown,
    markdown_table,
    write_exhibits,
)
from isogon.report.run import RunSummary, draw_run, follow, summarise, write_page
from isogon.report.search import write_search_page

__all__ = [
    "LEGEND",
    "MARK",
    "STATIC",
    "Cell",
    "CellText",
    "AngleCurve",
    "DemoSummary",
    "Exhibit",
    "FigureExhibit",
    "Line",
    "Place",
    "RunSummary",
    "Showing",
    "TableExhibit",
    "cell_texts",
    "check_plot_path",
    "check_target",
    "draw_panels",
    "draw_run",
    "draw_runs",
    "follow",
    "escape_markdown",
    "markdown_table",
    "plotly_script",
    "summarise",
    "write_demo_page",
    "write_exhibits",
    "write_page",
    "write_search_page",
]
