"""Pictures of figures: no text leaves the picture or lies on another panel, for what our experiments show."""

from __future__ import annotations

import itertools

import pytest

from isogon.papers.reproduction._registry import COMMITTED, experiments
from isogon.papers.reproduction._results import read_reproduction
from isogon.report.exhibit import _figures as exhibit_figures
from isogon.report.exhibit._exhibits import FigureExhibit, Line

agg = pytest.importorskip("matplotlib.backends.backend_agg")
#: the longest titles of panels; names of layers as in torchvision
TITLES = (
    "PreResNet32 on CIFAR-100: effective learning rate η/‖w‖²",
    "Mask R-CNN: Norm of backbone.body.layer1.0.conv2.weight",
)
LAYERS = [f"backbone.body.layer{stage}.{block}.conv2.weight" for stage in range(1, 5) for block in range(5)]


def drawn(panels, title, tmp_path, monkeypatch):
    """The figure as `draw_panels` would save it, and its renderer."""
    figures = []
    monkeypatch.setattr(exhibit_figures, "save_figure", lambda figure, target: figures.append(figure))
    exhibit_figures.draw_panels(panels, tmp_path / "picture.png", title=title)
    (figure,) = figures
    canvas = agg.FigureCanvasAgg(figure)
    canvas.draw()
    return figure, canvas.get_renderer()


def check_room(figure, renderer):
    """Every panel with its texts lies within the picture, beside all others and below the head; legends in axes."""
    texts = {f"panel {place}": ax.get_tightbbox(renderer) for place, ax in enumerate(figure.axes, start=1)}
    texts["head"] = figure._suptitle.get_window_extent(renderer)
    for name, box in texts.items():
        inside = box.x0 >= 0 and box.y0 >= 0 and box.x1 <= figure.bbox.width and box.y1 <= figure.bbox.height
        assert inside, f"{name} is cut off at the picture's edge"
    for (name, box), (other, others) in itertools.combinations(texts.items(), 2):
        assert not box.overlaps(others), f"{name} lies on {other}"
    for ax in figure.axes:
        legend, axes = ax.get_legend().get_window_extent(renderer), ax.get_window_extent(renderer)
        assert axes.y0 <= legend.y0, "a legend leaves its axes below"
        assert legend.y1 <= axes.y1, "a legend leaves its axes above"
        assert axes.x0 <= legend.x0, "a legend leaves its axes to the left"
        assert legend.x1 <= axes.x1, "a legend leaves its axes to the right"


@pytest.mark.parametrize(("identity", "scale"), [("yun/fig3", "small"), ("la/fig2", "small"), ("smd/fig4", "paper")])
def test_committed_results_have_room(identity, scale, tmp_path, monkeypatch):
    showing = read_reproduction(COMMITTED, experiments()[identity], scale).showing
    assert showing.figures
    check_room(*drawn(showing.figures, showing.title, tmp_path, monkeypatch))


@pytest.mark.parametrize(("count", "log"), [(1, False), (4, True)], ids=["one, linear", "four, logarithmic"])
def test_long_titles_wide_numbers_and_many_layers_have_room(count, log, tmp_path, monkeypatch):
    lines = [
        Line(name, [1e5, 2e5, 2.5e5], [1.25e-5 * (1 + place), 3.75e-5, 6.25e-4]) for place, name in enumerate(LAYERS)
    ]
    lines.append(Line("law", [1e5, 2.5e5], [2e-5, 1e-4], dashed=True))
    panels = [
        FigureExhibit(title, "part of the training", "angle of a step (rad)", lines, log_y=log)
        for title in itertools.islice(itertools.cycle(TITLES), count)
    ]
    title = max((experiment.title for experiment in experiments().values()), key=len)
    figure, renderer = drawn(panels, title, tmp_path, monkeypatch)
    check_room(figure, renderer)
    named = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert (named[0], named[-1]) == (LAYERS[0], "law")
    assert len(figure.axes[0].lines) == len(lines), "the legend is shortened, not the figure"


def test_numbers_along_logarithmic_axes_are_plain(tmp_path, monkeypatch):
    panel = FigureExhibit("A", "x", "y", [Line("a", [600, 5000], [0.2, 0.7])], log_x=True, log_y=True)
    figure, _ = drawn([panel], "title", tmp_path, monkeypatch)
    for axis, expected in ((figure.axes[0].xaxis, {"600", "1000", "2000"}), (figure.axes[0].yaxis, {"0.2", "0.6"})):
        shown = {label.get_text() for minor in (False, True) for label in axis.get_ticklabels(minor=minor)} - {""}
        assert shown >= expected
        assert all(float(number) for number in shown)
