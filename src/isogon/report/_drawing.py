"""What all pictures share: colours, the look of an axis, and how a picture is written."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from isogon.errors import ArgumentError, MissingExtraError
from isogon.files import write_whole

STATIC = (".png", ".pdf", ".svg")
# A palette that survives colour blindness and grey printing (Okabe and Ito).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
# Newer versions of plotly.js offer to upload the chart by default; dollars in a name are no formula.
PLOTLY_CONFIG = {
    "displaylogo": False,
    "responsive": True,
    "showSendToCloud": False,
    "plotlyServerURL": "",
    "typesetMath": False,
}
PLOTLY_AXIS = {"gridcolor": "#e6e9ee", "linecolor": "#99a", "zeroline": False}
# Dark to bright, in even steps of lightness, for more lines than a palette of single colours can tell apart.
_RAMP = ((59, 28, 115), (33, 102, 158), (18, 146, 130), (112, 173, 50), (222, 168, 20))


def ordered_colours(count: int) -> list[str]:
    """A colour for each of `count` lines that have an order, such as the depth of a layer."""
    if count <= len(COLOURS):
        return list(COLOURS[:count])
    places = np.linspace(0, len(_RAMP) - 1, count)
    channels = [np.interp(places, range(len(_RAMP)), channel) for channel in zip(*_RAMP, strict=True)]
    return ["#{:02X}{:02X}{:02X}".format(*map(round, colour)) for colour in zip(*channels, strict=True)]


def plotly_layout(along: str, upward: str) -> dict[str, Any]:
    """Plotly's layout of one panel; the names of its axes are read as markup."""
    return {
        "xaxis": {**PLOTLY_AXIS, "title": {"text": along}},
        "yaxis": {**PLOTLY_AXIS, "title": {"text": upward}},
        "margin": {"l": 60, "r": 20, "t": 30, "b": 50},
        "paper_bgcolor": "white",
        "plot_bgcolor": "white",
    }


def six_digits(value: float) -> float | None:
    """`value` with six digits, which are plenty for a picture; None without a finite one, since JSON has no NaN.

    >>> six_digits(2 / 3), six_digits(math.nan)
    (0.666667, None)
    """
    return float(f"{value:.6g}") if math.isfinite(value) else None


def check_target(name: str, path: str | os.PathLike[str], endings: Sequence[str]) -> Path:
    """`path` when it has one of the `endings` and its folder exists."""
    target = Path(path)
    if target.suffix.lower() not in endings:
        *others, last = endings
        rule = f"a file ending in {', '.join(others)} or {last}" if others else f"a file ending in {last}"
        raise ArgumentError(name, rule, str(path), "rename the file")
    if not target.parent.is_dir():
        raise ArgumentError(name, "in a folder that exists", str(path), f"make {target.parent} first")
    return target


def new_figure(size: tuple[float, float], target: Path) -> Any:
    """An empty matplotlib figure, outside of pyplot, so that no global state is touched."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("matplotlib", extra="report", purpose=f"to draw {target.name}") from None
    return Figure(figsize=size, layout="constrained")


def style_axis(ax: Any, title: str, along: str, *, log: bool = True) -> None:
    """The look of one panel."""
    ax.set_title(title, fontsize=10, loc="left")
    ax.set_xlabel(along)
    if log:
        ax.set_yscale("log")
        plain_log_numbers(ax.yaxis)
    else:
        ax.yaxis.set_major_formatter("{x:g}")
    ax.grid(visible=True, alpha=0.3)
    ax.spines[["top", "right"]].set_visible(False)


def plain_log_numbers(axis: Any) -> None:
    """Numbers along a logarithmic axis as people write them (0.6, not 6·10⁻¹), between its powers only if they fit."""
    from matplotlib.ticker import LogFormatter

    class Plain(LogFormatter):
        def __call__(self, x: float, pos: int | None = None) -> str:
            return f"{x:g}" if super().__call__(x, pos) else ""

    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(Plain(minor_thresholds=(1, 0.4)))


def save_figure(figure: Any, target: Path) -> None:
    """Write a matplotlib figure; an SVG without its date, so that the same numbers give the same file."""
    kind = target.suffix.lower().removeprefix(".")
    stream = io.BytesIO()
    figure.savefig(stream, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
    write_whole(target, stream.getbuffer())


@contextmanager
def refuse_unwritable(name: str, path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn an error of the system into one that says that the argument `name` cannot be written."""
    try:
        yield
    except OSError as error:
        raise ArgumentError(name, "a file we can write", str(path), error.strerror or str(error)) from None


def plain_text(text: str) -> str:
    """`text` as matplotlib shows it unchanged: no formula between dollars, no label hidden by its underscore."""
    escaped = text.replace("$", r"\$")
    return f" {escaped}" if escaped.startswith("_") else escaped
