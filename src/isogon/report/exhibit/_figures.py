"""Figures of lines: as Plotly's `data` and `layout` for a page, and as a picture through matplotlib."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from html import escape
from itertools import cycle
from pathlib import Path
from textwrap import wrap
from typing import Any

from isogon.report._drawing import (
    STATIC,
    check_target,
    new_figure,
    ordered_colours,
    plain_log_numbers,
    plain_text,
    plotly_layout,
    refuse_unwritable,
    save_figure,
    six_digits,
    style_axis,
)
from isogon.report.exhibit._exhibits import FigureExhibit, Line

#: lines that are theory alone
THEORY = "#222222"
# More points than a screen has columns only make a page heavy.
_MOST_POINTS = 2000
_PER_ROW = 3
#: inches of a panel, of what lies about its axes, and of each line of text above all panels
_WIDTH, _HEIGHT = 4.6, 3.3
_LEFT, _RIGHT, _BELOW, _ABOVE, _LINE = 0.85, 0.15, 0.5, 0.3, 0.2
#: letters of size 11 in an inch, and of size 10 above the axes of a panel
_PER_INCH, _PER_TITLE = 12, 46
#: lines that a legend has room for, and those that it names of more
_MOST_NAMED, _NAMED_OF_MORE = 12, 7
#: dashes of theory's lines in turn, for matplotlib and for Plotly
_DASHES = (("--", "dash"), (":", "dot"), ("-.", "dashdot"))


def line_colours(panels: Sequence[FigureExhibit]) -> dict[str, str]:
    """A colour for each name, the same in all panels; a dashed line has that of the solid one with its name.

    Panels without a common name have their own palettes: two lines next to a panel of twenty stay easy to distinguish.
    """
    every = [line for panel in panels for line in panel.lines]
    solid = {line.name for line in every if not line.dashed}
    colours = {line.name: THEORY for line in every}
    for names in _families([[line.name for line in panel.lines if line.name in solid] for panel in panels]):
        colours |= dict(zip(names, ordered_colours(len(names)), strict=True))
    return colours


def _families(lists: Sequence[Sequence[str]]) -> list[list[str]]:
    """The names of all lists, grouped: lists with a name in common belong together; in order."""
    families: list[list[str]] = []
    for names in lists:
        linked = [family for family in families if not set(names).isdisjoint(family)]
        families = [family for family in families if family not in linked]
        families.append(list(dict.fromkeys([*(name for family in linked for name in family), *names])))
    return families


def line_dashes(panels: Sequence[FigureExhibit]) -> dict[str, tuple[str, str]]:
    """The dashes of each name's dashed line: theory's lines are all black, so only the dashes distinguish them."""
    every = [line for panel in panels for line in panel.lines]
    solid = {line.name for line in every if not line.dashed}
    alone = dict.fromkeys(line.name for line in every if line.dashed and line.name not in solid)
    return dict.fromkeys(solid, _DASHES[0]) | dict(zip(alone, cycle(_DASHES), strict=False))


def plotly_panels(panels: Sequence[FigureExhibit]) -> list[dict[str, Any]]:
    """A figure for each panel, ready for JSON; Plotly would read names as markup, so they are escaped."""
    colours, dashes = line_colours(panels), line_dashes(panels)
    return [_plotly_panel(panel, colours, dashes) for panel in panels]


def draw_panels(
    panels: Sequence[FigureExhibit], path: str | os.PathLike[str], *, title: str = "", name: str = "path"
) -> Path:
    """Draw all panels into one picture, at most three in a row; `name` is what an error calls `path`."""
    target = check_target(name, path, STATIC)
    rows = -(-len(panels) // _PER_ROW)
    columns = -(-len(panels) // rows)  # four panels are two and two
    above = wrap(title, round(_PER_INCH * _WIDTH * columns))
    head = _LINE * len(above)
    figure = new_figure((_WIDTH * columns, _HEIGHT * rows + head), target)
    grid = _grid(figure, rows, columns, head)
    colours, dashes = line_colours(panels), line_dashes(panels)
    for place, panel in enumerate(panels):
        _draw_panel(figure.add_subplot(grid[divmod(place, columns)]), panel, colours, dashes)
    if above:
        figure.suptitle(plain_text("\n".join(above)), fontsize=11, y=1 - 0.1 / figure.get_figheight())
    with refuse_unwritable(name, path):
        save_figure(figure, target)
    return target


def _grid(figure: Any, rows: int, columns: int, head: float) -> Any:
    """Places for panels below `head` inches.

    All have room for the same labels: a layout fitted to them would draw every picture several times.
    """
    figure.set_layout_engine(None)
    width, height = figure.get_size_inches()
    return figure.add_gridspec(
        rows,
        columns,
        left=_LEFT / width,
        right=1 - _RIGHT / width,
        bottom=_BELOW / height,
        top=1 - (head + _ABOVE) / height,
        wspace=(_LEFT + _RIGHT) / (_WIDTH - _LEFT - _RIGHT),
        hspace=(_BELOW + _ABOVE) / (_HEIGHT - _BELOW - _ABOVE),
    )


def _plotly_panel(panel: FigureExhibit, colours: dict[str, str], dashes: dict[str, tuple[str, str]]) -> dict[str, Any]:
    traces = []
    for line in panel.lines:
        x, y = _points(line)
        dash = dashes[line.name][1] if line.dashed else "solid"
        traces.append(
            {
                "type": "scatter",
                "mode": "lines" if len(x) > 1 else "markers",
                "name": escape(line.name, quote=False),
                "x": [six_digits(value) for value in x],
                "y": [six_digits(value) for value in y],
                "line": {"color": colours[line.name], "dash": dash, "width": 1.5 if line.dashed else 2},
                "marker": {"color": colours[line.name]},
            }
        )
    layout = plotly_layout(escape(panel.x_name, quote=False), escape(panel.y_name, quote=False))
    layout["xaxis"]["type"] = "log" if panel.log_x else "linear"
    layout["yaxis"]["type"] = "log" if panel.log_y else "linear"
    layout |= {
        "title": {"text": escape(panel.title, quote=False), "font": {"size": 14}, "x": 0, "xanchor": "left"},
        "legend": {"orientation": "h", "y": -0.2},
        "margin": {**layout["margin"], "t": 40},
        "showlegend": True,
    }
    return {"data": traces, "layout": layout}


def _draw_panel(ax: Any, panel: FigureExhibit, colours: dict[str, str], dashes: dict[str, tuple[str, str]]) -> None:
    drawn = []
    for line in panel.lines:
        x, y = _points(line)
        drawn += ax.plot(
            x,
            y,
            color=colours[line.name],
            linestyle=dashes[line.name][0] if line.dashed else "-",
            linewidth=1.2 if line.dashed else 1.6,
            marker="o" if len(x) == 1 else None,
            label=plain_text(line.name),
        )
    high = panel.log_y and _has_positive(line.y for line in panel.lines)
    style_axis(ax, plain_text(panel.title), plain_text(panel.x_name), log=high)
    ax.set_ylabel(plain_text(panel.y_name))
    ax.tick_params(which="both", labelsize=8)
    # With a given place, the title does not search for overlaps, which takes a fifth of the drawing's time.
    size = min(10.0, 10.0 * _PER_TITLE / max(1, len(panel.title)))
    ax.set_title(ax.get_title(loc="left"), fontsize=size, loc="left", y=1.0)
    if panel.log_x and _has_positive(line.x for line in panel.lines):
        ax.set_xscale("log")
        plain_log_numbers(ax.xaxis)
    if drawn:
        ax.legend(handles=_legend_lines(drawn), frameon=False, fontsize=7)


def _legend_lines(lines: Sequence[Any]) -> list[Any]:
    """All lines, or of very many a few, evenly from the first to the last; colours show what is in between."""
    if len(lines) <= _MOST_NAMED:
        return list(lines)
    return [lines[round(place * (len(lines) - 1) / (_NAMED_OF_MORE - 1))] for place in range(_NAMED_OF_MORE)]


def _points(line: Line) -> tuple[list[float], list[float]]:
    """The line's points, evenly thinned where there are very many, the last always among them."""
    step = -(-len(line.x) // _MOST_POINTS)
    places = sorted({*range(0, len(line.x), step), len(line.x) - 1}) if len(line.x) else []
    x, y = list(line.x), list(line.y)
    return [float(x[place]) for place in places], [float(y[place]) for place in places]


def _has_positive(values: Iterable[Sequence[float]]) -> bool:
    """Whether a logarithmic axis has anything to show; without, matplotlib complains."""
    return any(value > 0 for line in values for value in line)
