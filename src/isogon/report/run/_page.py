"""The page about a run: one HTML file that asks nothing of the network.

Names of runs and layers come from outside, so every text is escaped in the markup, and the data are JSON without a `<`.
"""

from __future__ import annotations

import os
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isogon.report._drawing import PLOTLY_AXIS, PLOTLY_CONFIG, six_digits
from isogon.report._page_parts import SCRIPT, document, fact_spans, json_text, plotly_script, write_html
from isogon.report.run._figures import layer_colours, metric_colours
from isogon.report.run._tables import PANELS, LayerLine, RateDrop, RunSummary

if TYPE_CHECKING:
    from isogon.dynamics import Finding

# Up to this many layers all are shown at first; of more, the joint one and some with findings.
_MOST_AT_FIRST, _MOST_FOUND = 6, 3


def write_page(
    run: RunSummary, path: str | os.PathLike[str], *, name: str = "path", renew: float | None = None
) -> Path:
    """Write the page about `run` to `path`; `name` is what an error calls it.

    An open page loads itself again every `renew` seconds, for a run that is under way.
    """
    return write_html(page_text(run, renew=renew), path, name=name)


def page_text(run: RunSummary, *, renew: float | None = None) -> str:
    """The whole page, including plotly.js."""
    plotly = plotly_script()
    title = escape(run.name)
    body = f"""<header><h1>{title}</h1><div class="recipe">{_recipe(run)}</div></header>
<section><h2>Findings</h2><ul class="findings">{_findings(run)}</ul></section>
<main>
<aside><h2>Layers</h2>
<button type="button" id="opening">first view</button> <button type="button" id="every">every layer</button>
<label><input type="checkbox" id="linear"> linear scale</label>
<input type="search" id="filter" placeholder="find a layer" aria-label="find a layer">
<div id="layers">{_picker(run)}</div>
</aside>
<div><div id="panels"></div>{_epochs(run)}</div>
</main>
<footer>Solid lines are measured, dashed ones predicted by theory; grey verticals are drops of the learning rate.
Click a name above the panels to hide its lines, drag to zoom, double-click to return.</footer>
<script>{plotly}</script>
<script type="application/json" id="run">{json_text(figure_data(run))}</script>
<script>{SCRIPT}</script>"""
    return document(f"{title} · isogon", body, "", renew=renew)


def figure_data(run: RunSummary) -> dict[str, Any]:
    """What the page's script reads: Plotly's `data`, `layout` and `config`, and which layer each line belongs to."""
    place = {layer: index for index, layer in enumerate(run.layers)}
    at_first = opening_layers(run)
    # The joint layer comes first in the legend and last on the canvas, on top of the others.
    drawn = sorted(run.lines, key=lambda line: line.layer == run.joint)
    return {
        "data": _traces(drawn, run, at_first),
        "layout": _layout([panel.title for panel in PANELS], run.marks, height="log"),
        "config": PLOTLY_CONFIG,
        "layer_of": [place[line.layer] for line in drawn],
        "opening": [place[layer] for layer in at_first],
        "joint": place.get(run.joint),
        "heights": [f"yaxis{_suffix(index)}" for index in range(len(PANELS))],
        "epochs": _epochs_figure(run) if run.metrics else None,
    }


def opening_layers(run: RunSummary) -> list[str]:
    """The layers shown when the page opens."""
    if len(run.layers) <= _MOST_AT_FIRST:
        return run.layers
    suspects = list(dict.fromkeys(finding.layer for finding in run.findings if finding.layer in run.layers))
    visible = {run.joint, *[layer for layer in suspects if layer != run.joint][:_MOST_FOUND]}
    return [layer for layer in run.layers if layer in visible] or run.layers[:_MOST_AT_FIRST]


def _traces(drawn: list[LayerLine], run: RunSummary, at_first: list[str]) -> list[dict[str, Any]]:
    colours = layer_colours(run)
    named: set[str] = set()
    traces = []
    for line in drawn:
        traces.append(_trace(line, colours[line.layer], wide=line.layer == run.joint))
        traces[-1] |= {
            "visible": line.layer in at_first,
            "showlegend": line.layer not in named,
            "legendrank": run.layers.index(line.layer),
        }
        named.add(line.layer)
    return traces


def _trace(line: LayerLine, colour: str, *, wide: bool) -> dict[str, Any]:
    suffix = _suffix(PANELS.index(line.panel))
    kind = "predicted " if line.predicted else ""
    return {
        "type": "scatter",
        "mode": "lines" if len(line.value) > 1 else "markers",
        # Plotly reads a few tags and entities in texts; escaped, a name shows as it is.
        "name": escape(line.layer, quote=False),
        "legendgroup": line.layer,
        "xaxis": f"x{suffix}",
        "yaxis": f"y{suffix}",
        "x": line.step.tolist(),
        "y": [six_digits(value) for value in line.value],
        "customdata": line.epoch.tolist(),
        "hovertemplate": f"{kind}%{{y:.4g}}<br>step %{{x}}, epoch %{{customdata}}",
        "line": {
            "color": colour,
            "dash": "dash" if line.predicted else "solid",
            "width": 1.3 if line.predicted else 2.6 if wide else 1.8,
        },
    }


def _layout(titles: list[str], marks: list[RateDrop], *, height: str) -> dict[str, Any]:
    """Panels with these titles, two in a row, the drops of the learning rate marked in each."""
    layout: dict[str, Any] = {
        "grid": {"rows": _rows(titles), "columns": 2, "pattern": "independent", "xgap": 0.14, "ygap": 0.3},
        "margin": {"l": 60, "r": 20, "t": 90, "b": 45},
        # At the same distance above the first row of panels, however many there are.
        "legend": {"orientation": "h", "x": 0, "y": 1 + 0.16 / _rows(titles), "yanchor": "bottom"},
        "paper_bgcolor": "white",
        "plot_bgcolor": "white",
        "shapes": [],
        "annotations": [],
    }
    for index, panel_title in enumerate(titles):
        suffix = _suffix(index)
        layout[f"xaxis{suffix}"] = {
            **PLOTLY_AXIS,
            "title": {"text": "step", "standoff": 4},
            **({"matches": "x"} if suffix else {}),
        }
        layout[f"yaxis{suffix}"] = {**PLOTLY_AXIS, "type": height, "exponentformat": "power"}
        head = {"xref": f"x{suffix} domain", "yref": f"y{suffix} domain", "showarrow": False, "yanchor": "bottom"}
        title = {"x": 0, "y": 1, "yshift": 16, "xanchor": "left", "text": f"<b>{panel_title}</b>"}
        layout["annotations"].append({**head, **title})
        for mark in marks:
            across = {"type": "line", "xref": f"x{suffix}", "yref": f"y{suffix} domain", "y0": 0, "y1": 1}
            style = {"color": "#999999", "width": 1}
            layout["shapes"].append({**across, "x0": mark.step, "x1": mark.step, "line": style, "layer": "below"})
            text = {"text": f"lr ÷ {mark.factor:.3g}", "font": {"size": 11, "color": "#667"}}
            layout["annotations"].append({**head, "xref": f"x{suffix}", "x": mark.step, "y": 1, **text})
    return layout


def _epochs(run: RunSummary) -> str:
    """The place of the second figure; its rows of panels are as high as those of the first."""
    if not run.metrics:
        return ""
    return f'<h2>Epochs</h2><div id="epochs" style="height: {380 * _rows(run.metric_kinds)}px"></div>'


def _epochs_figure(run: RunSummary) -> dict[str, Any]:
    """Losses, accuracies …: one panel per kind."""
    kinds = run.metric_kinds
    traces = []
    for line, colour in zip(run.metrics, metric_colours(run), strict=True):
        suffix = _suffix(kinds.index(line.kind))
        traces.append(
            {
                "type": "scatter",
                "mode": "lines" if len(line.value) > 1 else "markers",
                "name": escape(line.name, quote=False),
                "showlegend": True,
                "xaxis": f"x{suffix}",
                "yaxis": f"y{suffix}",
                "x": line.step.tolist(),
                "y": [six_digits(value) for value in line.value],
                "customdata": line.epoch.tolist(),
                "hovertemplate": "%{y:.4g}<br>step %{x}, epoch %{customdata}",
                "line": {"color": colour, "width": 2},
            }
        )
    return {
        "data": traces,
        "layout": _layout([escape(kind, quote=False) for kind in kinds], run.marks, height="linear"),
    }


def _rows(panels: list[str]) -> int:
    """Rows of two that the panels need."""
    return (len(panels) + 1) // 2


def _recipe(run: RunSummary) -> str:
    if run.recipe is None:
        return "<span>no recipe is known of this run's optimizer</span>"
    return fact_spans({**run.recipe.to_dict(), "tuning factor": run.recipe.tuning_factor})


def _findings(run: RunSummary) -> str:
    return "".join(_finding(finding, run) for finding in run.findings) or "<li>Nothing calls for a change.</li>"


def _finding(finding: Finding, run: RunSummary) -> str:
    layer = "" if finding.layer is None else escape(finding.layer)
    if finding.layer in run.layers:
        layer = f'<button type="button" data-layer="{run.layers.index(finding.layer)}">{layer}</button>'
    kind = escape(finding.severity)
    return f'<li class="{kind}"><b>{kind}</b> {layer} {escape(finding.advice)}</li>'


def _picker(run: RunSummary) -> str:
    at_first, colours = opening_layers(run), layer_colours(run)
    return "".join(
        f'<label><input type="checkbox"{" checked" if layer in at_first else ""}>'
        f'<i style="background: {colours[layer]}"></i>{escape(layer)}</label>'
        for layer in run.layers
    )


def _suffix(index: int) -> str:
    """Plotly counts axes as x, x2, x3 …"""
    return "" if index == 0 else str(index + 1)
