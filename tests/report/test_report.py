"""Pictures: the data that reaches them, the formats, the refusals."""

from __future__ import annotations

import json
import re
import sys

import numpy as np
import pytest

from isogon import Recipe, predict
from isogon.errors import ArgumentError, MissingExtraError
from isogon.report import draw_runs


@pytest.fixture(scope="module")
def runs():
    recipe = Recipe(lr=0.1, weight_decay=1e-3, batch_size=10, samples=100, epochs=6)
    return {"near": predict.curves(recipe), "far": predict.curves(recipe, initial_norm=3)}


def test_the_page_holds_every_curve(runs, tmp_path):
    pytest.importorskip("plotly")
    path = draw_runs(runs, tmp_path / "runs.html", title="two runs")
    text = path.read_text(encoding="utf-8")
    data = json.loads(re.search(r'Plotly\.newPlot\(\s*"[^"]+",\s*(\[.*?\]),\s*\{', text, re.DOTALL).group(1))
    assert [trace["name"] for trace in data] == ["near", "far"] * 3
    assert data[1]["y"][0] is None  # no angle before the first epoch
    np.testing.assert_allclose(data[1]["y"][1:], np.degrees(runs["far"].epoch_angle[1:]))
    np.testing.assert_allclose(data[5]["y"], runs["far"].norm)
    assert "two runs" in text


@pytest.mark.parametrize("ending", ["png", "pdf", "svg"])
def test_figures_on_paper(runs, tmp_path, ending):
    assert draw_runs(runs, tmp_path / f"runs.{ending}").stat().st_size > 5000


def test_bad_paths_are_refused(runs, tmp_path):
    with pytest.raises(ArgumentError, match="ending in"):
        draw_runs(runs, tmp_path / "runs.gif")
    with pytest.raises(ArgumentError, match="a folder that exists"):
        draw_runs(runs, tmp_path / "nowhere" / "runs.png")
    (tmp_path / "runs.png").mkdir()
    with pytest.raises(ArgumentError, match="a file we can write"):
        draw_runs(runs, tmp_path / "runs.png")


@pytest.mark.parametrize(("package", "ending"), [("matplotlib", "png"), ("plotly", "html")])
def test_a_missing_package_is_named_with_its_cure(runs, tmp_path, monkeypatch, package, ending):
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"{package} is needed .*isogon\[report\]"):
        draw_runs(runs, tmp_path / f"runs.{ending}")
