"""The page about a search: its numbers are the outcome's, no text of the user breaks it, and it calls nobody."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
from html import unescape

import pytest

pytest.importorskip("optuna")
pytest.importorskip("pydantic")

from isogon.dynamics import read
from isogon.report.search._page import write_search_page
from isogon.search._outcome import Outcome
from isogon.search.fit._curve import fit_curve
from isogon.search.fit._trend import transfer_trend
from isogon.search.study._study import Study
from isogon.search.trials._ledger import PlannedTrial, StoredTrial

CHROMIUM = shutil.which("chromium")
SIZES, GRID, SEEDS = (100, 200), (0.05, 0.1, 0.2, 0.4, 0.8), (0, 1)
STUDY = {
    "recipe": {"lr": 0.1, "weight_decay": "?", "batch_size": 16, "samples": 800, "epochs": 8},
    "task": {"net": "cnn4", "net_options": {"width": 4}, "data": "digits", "augmentation": "none"},
    "search": {"fractions": [1 / 8, 1 / 4], "grid": GRID, "seeds": 2},
}


def accuracy(samples, factor, seed):
    return 0.8 + samples / 4000 - 0.03 * math.log2(factor / 0.2) ** 2 + 0.004 * seed * math.cos(99 * factor)


def made(study, error, *, verified=()):
    """The outcome of a search in which one trial at the largest tuning factor diverged and one failed."""
    rows = []
    for samples in SIZES:
        for factor in GRID:
            for seed in SEEDS:
                cell = PlannedTrial(factor, samples, samples / 800, seed)
                lost = {(100, 0.8, 0): "diverged", (200, 0.8, 1): "failed"}.get((samples, factor, seed))
                value = None if lost else accuracy(samples, factor, seed)
                message = error if lost == "failed" else None
                rows.append(StoredTrial(cell, len(rows), lost or "finished", value, 8 * samples, 1.5, message))
    points = [(r.planned.samples, (r.planned.tuning_factor, r.planned.seed, r.score or math.nan)) for r in rows]
    curves = {size: fit_curve(point for samples, point in points if samples == size) for size in SIZES}
    for factor in verified:
        rows.append(
            StoredTrial(PlannedTrial(factor, 800, 1.0, 0, "verify"), len(rows), "finished", 0.9, 6400, 9.0, None)
        )
    return Outcome(study, curves, transfer_trend(curves, 800), rows)


@pytest.fixture(scope="module")
def study():
    return Study.from_tables(STUDY)


@pytest.fixture(scope="module")
def page(study, evil, run_folder, tmp_path_factory):
    """(outcome, folder, path) of a page with hostile texts; the best trial and a bad one have a real run's records."""
    folder = tmp_path_factory.mktemp("study") / "a <b>search"
    for factor, seed in ((0.2, 1), (0.8, 0)):
        name = study.config(tuning_factor=factor, samples=200, seed=seed).name
        shutil.copytree(run_folder, folder / "trials" / name)
    outcome = made(study, f"Traceback\n{evil} broke", verified=(0.1, 0.2))
    text = f'[run]\nstorage = "postgresql://me:secret@host/db"\n# {evil}\n'
    return outcome, folder, write_search_page(outcome, folder, folder / "report.html", study_file=text)


def figures(path):
    return json.loads(re.search(r'id="figures">(.*?)</script>', path.read_text(encoding="utf-8"), re.DOTALL)[1])


def test_every_run_mean_and_top_is_where_the_outcome_has_it(page):
    outcome, _, path = page
    traces = figures(path)["figures"]["accuracies"]["data"]
    for place, (samples, curve) in enumerate(outcome.curve.items()):
        runs, means, fit, top = traces[4 * place : 4 * place + 4]
        wanted = [
            (row.planned.tuning_factor, 100 * row.score)
            for row in outcome.trials
            if row.score and (row.planned.samples, row.planned.purpose) == (samples, "search")
        ]
        assert len(wanted) == 9
        assert list(zip(runs["x"], runs["y"], strict=True)) == [pytest.approx(pair, rel=1e-5) for pair in wanted]
        assert means["x"] == list(GRID)
        assert means["y"] == pytest.approx([100 * mean for mean in curve.means], rel=1e-5)
        assert top["x"] == [curve.tuning_factor]
        bars = top["error_x"]
        ends = top["x"][0] - bars["arrayminus"][0], top["x"][0] + bars["array"][0]
        assert ends == pytest.approx(curve.interval)
        assert fit["y"] == pytest.approx([100 * curve.accuracy(factor) for factor in fit["x"]], rel=1e-5)
        assert min(fit["x"]) < curve.tuning_factor < max(fit["x"])
        assert min(fit["y"]) >= 100 * min(curve.means) * (1 - 1e-5)
    verified, *lost = traces[8:]
    assert (verified["x"], verified["y"]) == ([0.1, 0.2], [90.0, 90.0])
    assert [(trace["name"], trace["x"], trace["text"]) for trace in lost] == [
        ("diverged", [0.8], ["diverged: 100 samples, seed 0"]),
        ("failed", [0.8], ["failed: 200 samples, seed 1"]),
    ]
    assert {height for trace in lost for height in trace["y"]} == {min(min(trace["y"]) for trace in traces)}


def test_the_trend_ends_at_the_answer(page):
    outcome, _, path = page
    line, *tops, full = figures(path)["figures"]["trend"]["data"]
    assert [top["y"][0] for top in tops] == pytest.approx([c.tuning_factor for c in outcome.curve.values()], rel=1e-5)
    assert (full["x"], full["y"]) == ([800], [pytest.approx(outcome.tuning_factor, rel=1e-5)])
    assert (line["x"][-1], line["y"][-1]) == (800, full["y"][0])
    text = path.read_text(encoding="utf-8")
    assert f"weight_decay = {outcome.recipe.weight_decay:.4g}" in text


def test_angles_are_those_of_the_records(page, run_folder):
    _, _, path = page
    records = read(run_folder)
    ends = records[(records.layer == "all") & records.epoch_angle.notna()]
    best, lost = figures(path)["figures"]["angles"]["data"]
    assert best["name"].startswith("F = 0.2: ")
    assert best["name"].endswith("%, best")
    assert lost["name"].startswith("F = 0.8: ")
    assert best["line"]["width"] > lost["line"]["width"]
    assert best["x"] == [epoch + 1 for epoch in ends.epoch]
    assert best["y"] == pytest.approx([math.degrees(angle) for angle in ends.epoch_angle], rel=1e-5)


def test_the_cost_adds_up(page):
    outcome, _, path = page
    bars = {bar["name"]: bar["x"][0] for bar in figures(path)["figures"]["cost"]["data"]}
    search = bars["100 samples"] + bars["200 samples"]
    assert search == outcome.cost.images == 8 * 10 * 300
    assert bars["verification"] == 2 * 6400
    assert bars["full grid"] == 8 * 800 * 10
    assert f"{search:,} images, {search / bars['full grid']:.3g} of the 64,000" in path.read_text(encoding="utf-8")


def test_every_trial_is_listed_with_its_status(page, evil):
    outcome, _, path = page
    body = re.search(r"<tbody>(.*?)</tbody>", path.read_text(encoding="utf-8"))[1]
    listed = [[unescape(cell) for cell in re.findall(r"<td>(.*?)</td>", row)] for row in body.split("</tr>")[:-1]]
    assert [row[6] for row in listed] == [row.status for row in outcome.trials]
    accuracies = ["–" if row.score is None else f"{100 * row.score:.2f} %" for row in outcome.trials]
    assert [row[7] for row in listed] == accuracies
    assert [row[-1] for row in listed if row[-1]] == [f"{evil} broke"]
    assert [row[5] for row in listed].count("verify") == 2


def test_texts_of_the_user_stay_texts_and_passwords_stay_home(page, evil):
    _, _, path = page
    text = path.read_text(encoding="utf-8")
    assert evil not in text
    assert "a <b>search" not in text
    assert evil in unescape(re.search(r'<pre id="study">(.*?)</pre>', text, re.DOTALL)[1])
    assert "secret" not in text
    assert "postgresql://me:***@host/db" in text


def test_an_objective_of_ones_own_has_no_angles_and_no_per_cent(study, tmp_path):
    study = Study.from_tables({**STUDY, "task": {"objective": "mine:train"}})
    outcome = made(study, "ValueError: no")
    path = write_search_page(outcome, tmp_path, tmp_path / "report.html")
    shown = figures(path)["figures"]
    assert "angles" not in shown
    assert 'id="angles"' not in path.read_text(encoding="utf-8")
    assert max(shown["accuracies"]["data"][0]["y"]) < 1
    assert '"objective": "mine:train"' in unescape(path.read_text(encoding="utf-8"))


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on the PATH")
def test_a_browser_draws_it_without_complaint_or_request(page, tmp_path):
    _, _, path = page
    probe = """<script>
    setTimeout(() => { document.body.append(Object.assign(document.createElement("pre"), { id: "seen", textContent:
      JSON.stringify({ drawn: [...document.querySelectorAll(".js-plotly-plot")].map((figure) => figure.id),
        traces: document.querySelectorAll("#accuracies .scatterlayer .trace").length, title: document.title,
        requests: performance.getEntriesByType("resource").map((entry) => entry.name) }) })); }, 1000);
    </script>"""
    copy = tmp_path / "page.html"
    copy.write_text(path.read_text(encoding="utf-8").replace("</body>", f"{probe}</body>"), encoding="utf-8")
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr", "--virtual-time-budget=10000"]
    done = subprocess.run(
        [*command, "--dump-dom", copy.as_uri()], capture_output=True, text=True, timeout=120, check=True
    )
    assert [line for line in done.stderr.splitlines() if "CONSOLE" in line] == []
    seen = json.loads(unescape(re.search(r'<pre id="seen">(.*?)</pre>', done.stdout, re.DOTALL)[1]))
    assert set(seen["drawn"]) == {"accuracies", "trend", "angles", "cost"}
    assert seen["traces"] == 11
    assert seen["requests"] == []
    assert seen["title"] == "Search in a <b>search · isogon"
