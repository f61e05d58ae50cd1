"""The page's markup and data, and the figure on paper."""

from __future__ import annotations

import json
import re
import sys
from html import escape
from html.parser import HTMLParser

import matplotlib.image
import numpy as np
import pytest

from isogon import Recipe, predict
from isogon.dynamics import RunFolder
from isogon.errors import ArgumentError, MissingExtraError
from isogon.report import draw_runs
from isogon.report.run._figures import draw_run
from isogon.report.run._page import figure_data, opening_layers, page_text, write_page
from isogon.report.run._tables import PANELS, summarise


class Markup(HTMLParser):
    """The page as a browser's parser sees it: tags with attributes, and text outside scripts and styles."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.text, self.scripts, self._inside = [], "", [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._inside = tag

    def handle_endtag(self, tag):
        self._inside = ""

    def handle_data(self, data):
        if self._inside == "script":
            self.scripts.append(data)
        elif self._inside != "style":
            self.text += data

    def count(self, tag):
        return sum(name == tag for name, _ in self.tags)


def embedded(text):
    match = re.search(r'<script type="application/json" id="run">(.*?)</script>', text, re.DOTALL)
    return json.loads(match.group(1))


@pytest.fixture(scope="module")
def run(run_folder):
    return summarise(run_folder)


@pytest.fixture(scope="module")
def text(run):
    return page_text(run)


def test_the_page_holds_every_line(run, text):
    page = embedded(text)
    assert len(page["data"]) == len(run.lines) == 4 * 7
    axes = {("x" + ("" if i == 0 else str(i + 1))): panel for i, panel in enumerate(PANELS)}
    shown = {(t["legendgroup"], axes[t["xaxis"]], t["line"]["dash"] == "dash"): t for t in page["data"]}
    for line in run.lines:
        trace = shown[line.layer, line.panel, line.predicted]
        assert trace["x"] == line.step.tolist()
        np.testing.assert_allclose(trace["y"], line.value, rtol=1e-5)
    assert [run.layers[i] for i in page["layer_of"]] == [trace["legendgroup"] for trace in page["data"]]


def test_each_layer_has_one_name_in_the_legend_and_one_colour(run, text):
    page = embedded(text)
    named = [trace["legendgroup"] for trace in page["data"] if trace["showlegend"]]
    assert sorted(named) == sorted(run.layers)
    colours = {(trace["legendgroup"], trace["line"]["color"]) for trace in page["data"]}
    assert len(colours) == len(run.layers) == len({colour for _, colour in colours})


def test_drops_are_drawn_in_every_panel(text):
    layout = embedded(text)["layout"]
    assert [shape["x0"] for shape in layout["shapes"]] == [40] * 4
    assert sum(note["text"] == "lr ÷ 10" for note in layout["annotations"]) == 4


def test_the_page_tells_name_recipe_findings_and_layers(run, text):
    markup = Markup(text)
    for text in ("first run", "weight_decay 0.005", "batch_size 16", *run.layers, *[f.advice for f in run.findings]):
        assert text in markup.text
    boxes = [attributes for tag, attributes in markup.tags if attributes.get("type") == "checkbox"]
    assert len(boxes) == len(run.layers) + 1


def test_the_page_asks_nothing_of_the_network(text):
    markup = Markup(text)
    assert not [tag for tag, attributes in markup.tags if {"src", "href", "srcset", "action"} & set(attributes)]
    assert not {"img", "link", "iframe", "object", "base"} & {tag for tag, _ in markup.tags}
    (policy,) = (a["content"] for _, a in markup.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none';")
    assert "http" not in policy


def test_no_page_offers_to_upload_itself(text, tmp_path):
    assert embedded(text)["config"]["showSendToCloud"] is False
    recipe = Recipe(lr=0.1, weight_decay=1e-3, batch_size=10, samples=100, epochs=2)
    predicted = draw_runs({"predicted": predict.curves(recipe)}, tmp_path / "predicted.html")
    assert '"showSendToCloud": false' in predicted.read_text(encoding="utf-8")


def test_names_from_outside_stay_text(evil_folder, evil):
    bad = summarise(evil_folder)
    assert evil in {finding.layer for finding in bad.findings}
    evil_text = page_text(bad)
    markup = Markup(evil_text)
    assert markup.count("script") == 3
    assert markup.count("img") == 0
    assert markup.count("b") == len(bad.findings), "the one in a layer's name is text"
    assert evil not in evil_text
    assert markup.text.count(evil) >= 4  # title, heading, picker, finding
    names = {trace["legendgroup"]: trace["name"] for trace in embedded(evil_text)["data"]}
    assert names[evil] == "&lt;/script&gt;&lt;img src=x onerror=document.title='broken'&gt;"


def test_the_table_of_epochs_is_a_second_figure_with_a_panel_for_each_kind(metrics_folder, text, evil):
    run = summarise(metrics_folder)
    of_epochs = page_text(run)
    figure = embedded(of_epochs)["epochs"]
    shown = {trace["name"]: trace for trace in figure["data"]}
    for line in run.metrics:
        trace = shown[escape(line.name, quote=False)]
        assert trace["x"] == line.step.tolist()
        np.testing.assert_allclose(trace["y"], line.value, rtol=1e-5)
    assert [trace["yaxis"] for trace in figure["data"]] == ["y", "y", "y2", "y3"]
    assert len({trace["line"]["color"] for trace in figure["data"]}) == 4
    titles = [note["text"] for note in figure["layout"]["annotations"] if note["text"].startswith("<b>")]
    assert titles == ["<b>loss</b>", "<b>accuracy</b>", f"<b>{escape(evil, quote=False)}</b>"]
    assert [shape["x0"] for shape in figure["layout"]["shapes"]] == [40] * 3
    assert {figure["layout"][f"yaxis{i}"]["type"] for i in ("", 2, 3)} == {"linear"}, "an accuracy may be 0"
    assert ("div", "epochs") in [(tag, attributes.get("id")) for tag, attributes in Markup(of_epochs).tags]
    assert evil not in of_epochs
    assert embedded(text)["epochs"] is None
    assert "Epochs" not in Markup(text).text


def test_the_table_of_epochs_makes_the_picture_longer(metrics_folder, run_folder, tmp_path):
    """Two more rows of panels, the losses' blue and orange lines in the first of them."""
    without, with_epochs = (
        matplotlib.image.imread(draw_run(summarise(folder), tmp_path / f"{folder.name}.png"))[..., :3]
        for folder in (run_folder, metrics_folder)
    )
    assert with_epochs.shape[0] == 2 * without.shape[0]
    losses = with_epochs[1100:1650, :850]
    assert (losses[..., 2] > losses[..., 0] + 0.3).mean() > 0.0005
    assert (losses[..., 0] > losses[..., 2] + 0.5).mean() > 0.0005


def test_of_many_layers_the_joint_one_and_the_suspects_open(records, tmp_path, run_folder):
    first = records[records.layer == "stem.conv.weight"]
    many = [records, *[first.assign(layer=f"more.{i}") for i in range(20)]]
    many[5] = many[5].assign(step_angle=0.0)
    (tmp_path / "run.json").write_text((run_folder / "run.json").read_text())
    folder = RunFolder(tmp_path)
    for name in many:
        folder(name)
    run = summarise(tmp_path)
    assert len(run.layers) == 24
    opening = opening_layers(run)
    assert opening[0] == "all"
    assert "more.4" in opening
    assert len(opening) <= 4
    assert {t["legendgroup"] for t in figure_data(run)["data"] if t["visible"]} == set(opening)
    assert draw_run(run, tmp_path / "many.png").exists()


def test_a_run_without_recipe_or_predictions_is_shown_as_far_as_it_goes(records, tmp_path):
    columns = [column for column in records if column.startswith("predicted")]
    records.assign(**dict.fromkeys(columns, np.nan)).to_parquet(tmp_path / "bare.parquet")
    run = summarise(tmp_path / "bare.parquet")
    text = page_text(run)
    assert len(embedded(text)["data"]) == 4 * 4
    assert "no recipe is known" in text
    assert draw_run(run, tmp_path / "bare.png").exists()


@pytest.mark.parametrize("which", ["run_folder", "evil_folder"])
def test_the_picture_is_not_blank(which, request, tmp_path):
    run = summarise(request.getfixturevalue(which))
    image = matplotlib.image.imread(draw_run(run, tmp_path / "run.png"))[..., :3]
    assert image.shape[0] > 800
    for half in (image[:500, :850], image[:500, 950:], image[600:, :850], image[600:, 950:]):
        blue = (half[..., 2] > half[..., 0] + 0.3).mean()
        assert blue > 0.0005, "the second layer's blue line is in every panel"


@pytest.mark.parametrize("ending", ["pdf", "svg"])
def test_pictures_for_paper(run, tmp_path, ending):
    assert draw_run(run, tmp_path / f"run.{ending}").stat().st_size > 5000


def test_places_that_cannot_be_written_are_refused(run, tmp_path):
    for draw, ending in ((write_page, "html"), (draw_run, "png")):
        with pytest.raises(ArgumentError, match="ending in"):
            draw(run, tmp_path / "run.gif")
        with pytest.raises(ArgumentError, match="a folder that exists"):
            draw(run, tmp_path / "nowhere" / f"run.{ending}")
        (tmp_path / f"run.{ending}").mkdir()
        with pytest.raises(ArgumentError, match="--out must be a file we can write"):
            draw(run, tmp_path / f"run.{ending}", name="--out")


@pytest.mark.parametrize(
    ("package", "draw", "ending"), [("matplotlib", draw_run, "png"), ("plotly", write_page, "html")]
)
def test_a_missing_package_is_named_with_its_cure(run, tmp_path, monkeypatch, package, draw, ending):
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"{package} is needed .*isogon\[report\]"):
        draw(run, tmp_path / f"run.{ending}")
