"""The report's panels on paper."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from isogon.report._drawing import (
    STATIC,
    check_target,
    new_figure,
    ordered_colours,
    plain_text,
    refuse_unwritable,
    save_figure,
    style_axis,
)
from isogon.report.run._tables import PANELS, LayerLine, RunSummary

#: the joint layer's colour; the others have the palette's
JOINT_COLOUR = "#222222"
# Above this many layers a legend is longer than the picture.
_MOST_NAMED = 12
# Letters that fit into one line of the legend, beside the samples of four lines.
_LEGEND_LETTERS = 150


def layer_colours(run: RunSummary) -> dict[str, str]:
    """The colour of each layer, in both kinds of picture."""
    single = [name for name in run.layers if name != run.joint]
    colours = dict(zip(single, ordered_colours(len(single)), strict=True))
    return {name: colours.get(name, JOINT_COLOUR) for name in run.layers}


def draw_run(run: RunSummary, path: str | os.PathLike[str], *, name: str = "path") -> Path:
    """Draw the panels of a run into the picture `path`; `name` is what an error calls it."""
    target = check_target(name, path, STATIC)
    colours = layer_colours(run)
    kinds = run.metric_kinds
    rows = 2 + (len(kinds) + 1) // 2
    figure = new_figure((12, 3.75 * rows), target)
    all_axes = list(figure.subplots(rows, 2, sharex=True).flat)
    axes = dict(zip(PANELS, all_axes, strict=False))
    for panel, ax in axes.items():
        style_axis(ax, panel.title, "step")
    metric_axes = dict(zip(kinds, all_axes[len(PANELS) :], strict=False))
    _draw_metrics(metric_axes, run)
    for ax in all_axes[len(PANELS) + len(kinds) :]:
        ax.remove()
    for ax in (*axes.values(), *metric_axes.values()):
        ax.tick_params(labelbottom=True)
        for mark in run.marks:
            ax.axvline(mark.step, color="#999999", linewidth=1)
    handles = {}
    # The joint layer comes first in the run and is drawn last, on top.
    for line in reversed(run.lines):
        (handle,) = axes[line.panel].plot(line.step, line.value, **_look(line, run, colours))
        if not line.predicted:
            handles[line.layer] = handle
    layers = [layer for layer in run.layers if layer in handles]
    if len(layers) > _MOST_NAMED:
        layers = [layer for layer in layers if layer == run.joint]
    figure.legend(
        [handles[layer] for layer in layers],
        [plain_text(layer) for layer in layers],
        loc="outside lower center",
        ncols=max(1, min(4, _LEGEND_LETTERS // max(map(len, layers), default=1))),
        frameon=False,
        fontsize=9,
    )
    figure.suptitle(plain_text(f"{run.name}: {_caption(run)}"), fontsize=11)
    with refuse_unwritable(name, path):
        save_figure(figure, target)
    return target


def metric_colours(run: RunSummary) -> list[str]:
    """A colour for each line of the epochs' table, in both kinds of picture."""
    return ordered_colours(len(run.metrics))


def _draw_metrics(axes: dict[str, Any], run: RunSummary) -> None:
    for line, colour in zip(run.metrics, metric_colours(run), strict=True):
        marker = "o" if len(line.value) == 1 else None
        axes[line.kind].plot(line.step, line.value, color=colour, marker=marker, label=plain_text(line.name))
    for kind, ax in axes.items():
        style_axis(ax, plain_text(kind), "step", log=False)
        ax.legend(frameon=False, fontsize=9)


def _look(line: LayerLine, run: RunSummary, colours: dict[str, str]) -> dict[str, object]:
    joint = line.layer == run.joint
    return {
        "color": colours[line.layer],
        "linestyle": "--" if line.predicted else "-",
        "linewidth": 1.2 if line.predicted else 2 if joint else 1.4,
        "alpha": 0.6 if line.predicted and not joint else 0.9,
        # A line of one point would be invisible.
        "marker": "o" if len(line.value) == 1 else None,
    }


def _caption(run: RunSummary) -> str:
    parts = ["measured (solid), predicted (dashed)"]
    if run.marks:
        parts.append("grey: the learning rate drops")
    if len(run.layers) > _MOST_NAMED:
        parts.append("layers from the first (dark) to the last (bright)")
    return ", ".join(parts)
