"""Pictures of predicted runs: a PNG (or PDF, SVG) through matplotlib, an interactive page through Plotly."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from isogon.errors import MissingExtraError
from isogon.report._drawing import (
    COLOURS,
    PLOTLY_CONFIG,
    STATIC,
    check_target,
    new_figure,
    refuse_unwritable,
    save_figure,
    style_axis,
)

if TYPE_CHECKING:
    from isogon.predict import Curves
    from isogon.theory import Floats

_DASHES = ("solid", "dash", "dot", "dashdot")
_MATPLOTLIB_DASHES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}


_PANELS: dict[str, Callable[[Curves], Floats]] = {
    "angle per epoch (degrees)": lambda run: np.degrees(run.epoch_angle),
    "angle per step (degrees)": lambda run: np.degrees(run.step_angle),
    "norm of the weights": lambda run: run.norm,
}


def check_plot_path(path: str | os.PathLike[str]) -> Path:
    """`path` when its ending names a format we draw and its folder exists."""
    return check_target("plot", path, (*STATIC, ".html"))


def draw_runs(runs: Mapping[str, Curves], path: str | os.PathLike[str], *, title: str = "") -> Path:
    """Draw the angle per epoch, the angle per step and the norm of each labelled run into `path`."""
    target = check_plot_path(path)
    panels = {name: {label: values(run) for label, run in runs.items()} for name, values in _PANELS.items()}
    epochs = {label: run.epoch for label, run in runs.items()}
    with refuse_unwritable("plot", path):
        if target.suffix.lower() == ".html":
            _draw_page(panels, epochs, target, title)
        else:
            _draw_static(panels, epochs, target, title)
    return target


def _draw_static(
    panels: Mapping[str, Mapping[str, Floats]], epochs: Mapping[str, Floats], target: Path, title: str
) -> None:
    figure = new_figure((11, 3.4), target)
    axes = figure.subplots(1, len(panels))
    for ax, (name, lines) in zip(axes, panels.items(), strict=True):
        for index, (label, values) in enumerate(lines.items()):
            ax.plot(
                epochs[label],
                values,
                label=label,
                color=COLOURS[index % len(COLOURS)],
                linestyle=_MATPLOTLIB_DASHES[_DASHES[index % len(_DASHES)]],
                linewidth=2,
            )
        style_axis(ax, name, "epoch")
    if len(epochs) > 1:
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    if title:
        figure.suptitle(title, fontsize=11)
    save_figure(figure, target)


def _draw_page(
    panels: Mapping[str, Mapping[str, Floats]], epochs: Mapping[str, Floats], target: Path, title: str
) -> None:
    try:
        from plotly import graph_objects
        from plotly.subplots import make_subplots
    except ImportError:
        raise MissingExtraError("plotly", extra="report", purpose=f"to draw {target.name}") from None
    figure = make_subplots(rows=1, cols=len(panels), subplot_titles=list(panels))
    for column, lines in enumerate(panels.values(), start=1):
        for index, (label, values) in enumerate(lines.items()):
            line = {"color": COLOURS[index % len(COLOURS)], "dash": _DASHES[index % len(_DASHES)]}
            trace = graph_objects.Scatter(
                x=epochs[label].tolist(),
                y=[None if np.isnan(value) else value for value in values.tolist()],
                name=label,
                legendgroup=label,
                showlegend=column == 1 and len(lines) > 1,
                line=line,
            )
            figure.add_trace(trace, row=1, col=column)
    figure.update_xaxes(title_text="epoch")
    figure.update_yaxes(type="log")
    figure.update_layout(title_text=title, template="plotly_white", legend={"orientation": "h", "y": -0.2})
    figure.write_html(target, include_plotlyjs=True, config=PLOTLY_CONFIG)
