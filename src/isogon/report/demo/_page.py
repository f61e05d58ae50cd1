"""The page of `isogon demo`: what was checked, how fast the weights turned, what the search on a fraction was worth.

It takes plain tables and texts; every text is escaped in the markup.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isogon.report._drawing import COLOURS, plotly_layout, six_digits
from isogon.report._page_parts import article, asset, write_html

if TYPE_CHECKING:
    import pandas as pd

_STYLE = asset("demo.css")
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")


@dataclass(frozen=True)
class AngleCurve:
    """A line of the angle figure, through `epoch` and `angle` (degrees); lines of one `group` share a colour."""

    name: str
    group: str
    epoch: Sequence[int]
    angle: Sequence[float]


@dataclass(frozen=True)
class DemoSummary:
    """The content of the page.

    `findings` are sentences; `before`, `changes` and `after` are about the check and the conversion. `accuracy` has one
    row per run (`data`, `factor`, `seed`, `accuracy` in per cent), `equals` the runs with one tuning factor, any
    columns. `drops` are the epochs after which the learning rate falls. `law`, `spread` and `cost` are sentences about
    theory, seeds and price, `code` is the user's next step.
    """

    findings: Sequence[str]
    before: str
    changes: Sequence[str]
    after: str
    curves: Sequence[AngleCurve]
    drops: Sequence[int]
    accuracy: pd.DataFrame
    equals: pd.DataFrame
    law: str
    spread: str
    cost: str
    code: str


def write_demo_page(demo: DemoSummary, path: str | os.PathLike[str]) -> Path:
    """Write the page to `path`."""
    return write_html(demo_text(demo), path)


def demo_text(demo: DemoSummary) -> str:
    """The whole page, including plotly.js."""
    figures = {"angles": _angles(demo), "accuracies": _accuracies(demo)}
    body = f"""<h1>Find the weight decay on a fraction of the data, use it on all of it</h1>
<p>Normalisation (such as batch norm) makes a network blind to the length of its weights: only their <i>direction</i>
matters, and training is the turning of that direction. One number, the <b>tuning factor</b>
F = N·lr·wd / (B·(1 − momentum)), for N images in batches of B with learning rate lr and weight decay wd, sets the angle
by which the weights turn in an epoch. So a value found cheaply on few images can be carried to many. The runs below,
on small pictures of clothes (Fashion-MNIST), show how far that holds.</p>
<section><h2>What was found</h2><ul class="findings">{_items(demo.findings)}</ul></section>
<section><h2>1. The network: does the length of its weights matter?</h2>
<p>{escape(demo.before)}</p><p>{escape(demo.after)} These:</p><ul>{_items(demo.changes)}</ul></section>
<section><h2>2. Equal tuning factor, equal angle per epoch</h2>
<div id="angles" class="figure"></div>
<p>Lines of one colour have the same tuning factor and differ in images, batch size, learning rate, weight decay or
momentum. The grey verticals are drops of the learning rate (÷ 10): a smaller rate turns the weights less. The runs with
one tuning factor, angles over the last epochs before the first drop:</p>
{_table(demo.equals)}
<p>{escape(demo.law)}</p></section>
<section><h2>3. The best tuning factor, on the fraction and on the full set</h2>
<div id="accuracies" class="figure"></div>
<p>Each dot is a run, the lines join means over seeds. {escape(demo.spread)}</p>
<p>{escape(demo.cost)}</p></section>
<section><h2>How to continue with your own model</h2><pre>{escape(demo.code)}</pre></section>
<footer>Drag in a figure to zoom, double-click to return, click a name to hide its line.</footer>"""
    return article("isogon: the demo", body, figures, _STYLE)


def _angles(demo: DemoSummary) -> dict[str, Any]:
    groups = list(dict.fromkeys(curve.group for curve in demo.curves))
    traces = []
    for index, curve in enumerate(demo.curves):
        place = groups.index(curve.group)
        within = [earlier.group for earlier in demo.curves[:index]].count(curve.group)
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": escape(curve.name, quote=False),
                "legendgroup": str(place),
                "legendgrouptitle": {"text": escape(curve.group, quote=False)},
                "x": list(curve.epoch),
                "y": [six_digits(value) for value in curve.angle],
                "hovertemplate": "%{y:.3g}° in epoch %{x}",
                "line": {"color": COLOURS[place % len(COLOURS)], "dash": _DASHES[within % len(_DASHES)], "width": 2},
            }
        )
    layout = plotly_layout("epoch", "angle turned in the epoch (degrees)")
    layout["yaxis"]["type"] = "log"
    layout["shapes"] = [
        {
            "type": "line",
            "x0": drop,
            "x1": drop,
            "yref": "paper",
            "y0": 0,
            "y1": 1,
            "line": {"color": "#999", "width": 1},
        }
        for drop in demo.drops
    ]
    layout["annotations"] = [
        {"x": drop, "yref": "paper", "y": 1, "yanchor": "bottom", "showarrow": False, "text": "lr ÷ 10"}
        for drop in demo.drops
    ]
    return {"data": traces, "layout": layout}


def _accuracies(demo: DemoSummary) -> dict[str, Any]:
    traces: list[dict[str, Any]] = []
    for place, (name, rows) in enumerate(demo.accuracy.groupby("data", sort=False)):
        shared = {"type": "scatter", "legendgroup": str(place), "name": escape(str(name), quote=False)}
        colour = COLOURS[place % len(COLOURS)]
        means = rows.groupby("factor").accuracy.mean()
        at = {"hovertemplate": "%{y:.2f} % at F = %{x:.4g}"}
        line = {"mode": "lines", "x": means.index.tolist(), "y": [six_digits(value) for value in means]}
        dots = {"mode": "markers", "x": rows.factor.tolist(), "y": [six_digits(value) for value in rows.accuracy]}
        traces.append({**shared, **at, **line, "line": {"color": colour, "width": 2}})
        traces.append({**shared, **at, **dots, "showlegend": False, "marker": {"color": colour, "size": 8}})
    layout = plotly_layout("tuning factor F", "test accuracy (%)")
    layout["xaxis"] |= {"type": "log", "tickvals": sorted(set(demo.accuracy.factor)), "tickformat": ".3g"}
    return {"data": traces, "layout": layout}


def _table(rows: pd.DataFrame) -> str:
    head = "".join(f"<th>{escape(str(name))}</th>" for name in rows.columns)
    records = rows.to_dict("records")
    body = "".join(f"<tr>{''.join(f'<td>{_cell(value)}</td>' for value in row.values())}</tr>" for row in records)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: Any) -> str:
    return (
        f"{value:.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else escape(str(value))
    )


def _items(sentences: Sequence[str]) -> str:
    return "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
