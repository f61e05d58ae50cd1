"""The demo: a glimpse of it end to end as a user starts it, and its sentences about made-up numbers."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import sys
from html import unescape
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import isogon
from isogon.cli import main
from isogon.demo import GLIMPSE, WHOLE, network, run_demo
from isogon.demo import _plan as plan
from isogon.demo import _sentences as sentences
from isogon.demo._results import best_factor
from isogon.errors import MissingExtraError
from isogon.lab import Run

EXAMPLE = "isogon demo --quick --out isogon-glimpse"


@pytest.fixture(scope="module")
def glimpse(tmp_path_factory):
    """The example of `--help`, in a process of its own; it works without being installed, too."""
    folder = tmp_path_factory.mktemp("run_demo")
    variables = {**os.environ, "PYTHONPATH": str(Path(isogon.__file__).parents[1])}
    command = [sys.executable, "-m", *EXAMPLE.split()]
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return folder, done


@pytest.fixture(scope="module")
def runs(glimpse):
    return [Run.read(folder) for folder in sorted((glimpse[0] / "isogon-glimpse" / "runs").iterdir())]


@pytest.fixture(scope="module")
def page(glimpse):
    return (glimpse[0] / "isogon-glimpse" / "demo.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def figures(page):
    return json.loads(re.search(r'id="figures">(.*?)</script>', page).group(1))["figures"]


def angles(run):
    records = run.records[run.records.layer == "all"]
    return records[records.epoch_angle.notna()].epoch_angle.map(math.degrees).tolist()


def factor(run):
    return float(f"{run.config.recipe.tuning_factor:.6g}")


@pytest.fixture(scope="module")
def searched(runs):
    """The runs of the search: those on the fraction but for the one relative with another batch size."""
    return [run for run in runs if run.config.recipe.samples == GLIMPSE.fraction and run.config.recipe.batch_size == 32]


@pytest.fixture(scope="module")
def full(runs):
    return [run for run in runs if run.config.recipe.samples == GLIMPSE.full]


def by_factor(part):
    return pd.Series([100 * run.accuracy for run in part]).groupby([factor(run) for run in part])


@pytest.fixture(scope="module")
def best(searched):
    return by_factor(searched).mean().idxmax()


def test_the_summary_is_one_screen_that_ends_with_the_page(glimpse):
    folder, done = glimpse
    lines = done.stdout.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 100
    assert (folder / lines[-1]).is_file()
    assert "is not invariant: scaling all its weights changes its output, since classifier.bias" in " ".join(
        done.stdout.split()
    )
    assert "a copy that is invariant" in done.stdout
    assert "A glimpse" in done.stdout
    assert "Traceback" not in done.stderr


def test_progress_goes_to_the_other_stream(glimpse, runs):
    ended = re.findall(r"(\d+) of (\d+) runs", glimpse[1].stderr)
    assert len(ended) == len(runs)


def test_the_help_shows_the_example_that_was_run(capsys, monkeypatch):
    monkeypatch.setenv("TERMINAL_WIDTH", "300")
    with pytest.raises(SystemExit):
        main(["demo", "--help"])
    assert EXAMPLE in [line.strip() for line in capsys.readouterr().out.splitlines()]


def test_the_page_asks_nothing_of_the_network(page):
    markup = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    assert "default-src 'none'" in markup
    assert not re.search(r"(src|href)\s*=|url\(|@import", markup)
    assert not re.search(r"<script[^>]+src", page)


@pytest.mark.skipif(shutil.which("chromium") is None, reason="no chromium on the PATH")
def test_a_browser_draws_the_page_without_a_complaint(glimpse, figures, tmp_path):
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
    options += ["--enable-logging=stderr", f"--user-data-dir={tmp_path}", "--virtual-time-budget=10000", "--dump-dom"]
    page = glimpse[0] / "isogon-glimpse" / "demo.html"
    done = subprocess.run(
        ["chromium", *options, page.as_uri()], capture_output=True, text=True, timeout=120, check=True
    )
    assert "CONSOLE" not in done.stderr
    lines = sum(len(figure["data"]) for figure in figures.values())
    assert done.stdout.count('class="trace scatter') == lines


def test_the_pages_accuracies_are_those_of_the_runs(figures, searched, full):
    traces = figures["accuracies"]["data"]
    for (line, dots), part in zip((traces[:2], traces[2:]), (searched, full), strict=True):
        expected = sorted((factor(run), 100 * run.accuracy) for run in part)
        np.testing.assert_allclose(sorted(zip(dots["x"], dots["y"], strict=True)), expected, rtol=1e-5)
        means = by_factor(part).mean()
        np.testing.assert_allclose(line["x"], means.index)
        np.testing.assert_allclose(line["y"], means, rtol=1e-5)


def test_the_pages_curves_are_those_of_the_runs(figures, runs, best):
    traces = figures["angles"]["data"]
    drawn = sorted((trace["legendgrouptitle"]["text"], trace["y"]) for trace in traces)
    groups = {f"F/4 = {best / 4:.4g}": best / 4, f"F = {best:.4g}": best, f"4F = {best * 4:.4g}": best * 4}
    expected = sorted(
        (group, [float(f"{angle:.6g}") for angle in angles(run)])
        for group, value in groups.items()
        for run in runs
        if run.config.seed == 0 and factor(run) == pytest.approx(value)
    )
    assert drawn == expected
    assert sum(group.startswith("F =") for group, _ in drawn) == 5
    assert len({(trace["legendgrouptitle"]["text"], trace["line"]["color"]) for trace in traces}) == 3
    assert [shape["x0"] for shape in figures["angles"]["layout"]["shapes"]] == [2, 3]


def test_summary_and_page_say_the_numbers_of_the_runs(glimpse, runs, searched, full, best, page):
    # The glimpse has two epochs before the first drop; the second counts.
    equal = [angles(run)[1] for run in runs if run.config.seed == 0 and factor(run) == pytest.approx(best)]
    spreads = [(by_factor(part).max() - by_factor(part).min()).max() for part in (searched, full)]
    images = sum(run.images for run in searched)
    for sentence in (
        f"{len(equal)} runs with F = {best:.4g} but other N, B, lr, wd or momentum turned by {min(equal):.1f}° to "
        f"{max(equal):.1f}° per epoch",
        f"{len(searched)} short runs on 320 images found F = {best:.4g} best",
        f"Carried to all 640 images, it gave {by_factor(full).mean()[best]:.1f} %",
        f"differ by up to {spreads[0]:.1f} points on 320 images, {spreads[1]:.1f} on 640",
        f"The search saw {images:,} images; the same grid on the full set would have seen {2 * images:,}, 2.0 times",
    ):
        assert sentence in " ".join(glimpse[1].stdout.split())
        assert sentence in unescape(page)


def test_the_second_tour_reads_what_the_first_has_made(glimpse, monkeypatch, capsys):
    folder, first = glimpse
    files = sorted((folder / "isogon-glimpse" / "runs").rglob("*"))
    before = {file: file.stat().st_mtime_ns for file in files}
    monkeypatch.chdir(folder)
    with pytest.raises(SystemExit) as stop:
        main(EXAMPLE.split()[1:])
    again = capsys.readouterr()
    assert stop.value.code == 0
    assert again.out == first.stdout
    assert " runs, " not in again.err, "no run is trained again"
    assert {file: file.stat().st_mtime_ns for file in sorted((folder / "isogon-glimpse" / "runs").rglob("*"))} == before


def test_a_folder_that_cannot_be_made_is_refused(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit) as stop:
        main(["demo", "--out", str(tmp_path / "file" / "below")])
    assert stop.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert re.fullmatch(r"out must be a folder we can make, got .*\.\n", printed.err)


def test_a_missing_plotly_is_told_before_anything_is_trained(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(MissingExtraError, match="plotly is needed"):
        run_demo(tmp_path / "never", GLIMPSE)
    assert not (tmp_path / "never").exists()


@pytest.mark.parametrize("size", [WHOLE, GLIMPSE])
def test_the_plan_varies_what_it_says_and_keeps_the_rest(size):
    best = plan.recipe_with(0.25, size)
    assert best.tuning_factor == pytest.approx(0.25)
    grid = plan.search_grid(size)
    assert (
        len({(config.recipe.weight_decay, config.seed) for config in grid})
        == len(grid)
        == len(size.factors) * size.seeds
    )
    relatives = [config.recipe for config in plan.relatives(best, size)]
    assert [recipe.tuning_factor for recipe in relatives] == pytest.approx([0.25] * len(relatives))
    settings = {(r.samples, r.batch_size, r.lr, r.weight_decay, r.momentum) for r in [best, *relatives]}
    assert all(len(set(column)) > 1 for column in zip(*settings, strict=True)), "each of them differs somewhere"
    factors = sorted({round(config.recipe.tuning_factor / 0.25, 9) for config in plan.full_runs(best, size)})
    assert factors == [0.0625, 0.25, 1, 4, 16] if size.far else [0.25, 1, 4]
    assert {config.recipe.samples for config in plan.full_runs(best, size)} == {size.full}
    assert {config.epochs for config in [*grid, *plan.full_runs(best, size), *plan.relatives(best, size)]} == {
        size.epochs
    }


def rows(accuracies, count=8000, angle=20.0):
    """Made-up runs: tuning factor → accuracies of the seeds."""
    results = [
        {
            "factor": factor,
            "seed": seed,
            "samples": count,
            "accuracy": value,
            "angle": angle * factor**0.5,
            "predicted": 30.0,
        }
        for factor, values in accuracies.items()
        for seed, value in enumerate(values)
    ]
    return pd.DataFrame(results)


@pytest.mark.parametrize(
    ("accuracies", "sentence"),
    [
        ({0.25: [88, 88.2], 1: [86, 86.1]}, "the best of 2 there too, ahead of F = 1 by 2.0 points, more than the 0.2"),
        (
            {0.25: [88, 88.2], 1: [87.9, 88.1]},
            "the best of 2 there too, ahead of F = 1 by 0.1 points, no more than the 0.2",
        ),
        ({0.25: [88, 88.2], 1: [88.1, 88.3]}, "F = 1 was ahead by 0.1 points, no more than the 0.2 .*: undecided"),
        (
            {0.25: [88, 88.2], 4: [89, 89.2]},
            "F = 4 was ahead by 1.0 points, more than the 0.2 .*: the rule missed by a factor of 16",
        ),
        ({0.25: [88, 88.2], 1: [86, 86.1], 4: [99, math.nan]}, "the best of 3 there too, ahead of F = 1"),
    ],
)
def test_the_verdict_follows_from_the_numbers(accuracies, sentence):
    assert re.search(sentence, sentences.transfer_sentence(rows(accuracies), 0.25))


def test_the_angles_are_called_alike_only_where_the_neighbours_lie_outside():
    apart = pd.concat([rows({0.0625: [1], 0.25: [1], 1: [1]}), rows({0.25: [1]}, angle=24)])
    assert (
        "10.0° to 12.0° per epoch; with F/4 it was 5.0°, with 4F 20.0°: equal F, similar angle"
        in sentences.angles_sentence(apart, 0.25)
    )
    mixed = pd.concat([apart, rows({0.25: [1]}, angle=44)])
    assert "do not separate the factors" in sentences.angles_sentence(mixed, 0.25)


def test_a_search_that_ends_at_its_edge_says_so():
    inside, edge = rows({0.1: [1], 1: [3], 10: [2]}), rows({0.1: [4], 1: [3], 10: [2]})
    assert "edge" not in sentences.search_sentence(inside, best_factor(inside))
    assert "edge" in sentences.search_sentence(edge, best_factor(edge))


def test_the_network_is_a_converted_fresh_one_whatever_was_made_before():
    def drawn(make):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(7)
            return make().state_dict()

    network._template.cache_clear()
    direct = drawn(lambda: network.conversion(network.ordinary()).model)
    for _ in range(2):
        state = drawn(network.converted)
        assert state.keys() == direct.keys()
        assert all(torch.equal(state[name], value) for name, value in direct.items())


def test_the_lines_for_ones_own_model_run_and_leave_something_to_report(page, tmp_path, monkeypatch):
    """Copied from the page, with a model and a loop that are not isogon's."""
    code = unescape(re.search(r"How to continue with your own model</h2><pre>(.*?)</pre>", page, re.S)[1])
    assert "convert" not in code, "a model can be watched as it is"
    model = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8 * 36, 10))
    x, y = torch.randn(64, 3, 8, 8), torch.randint(0, 10, (64,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)

    def train(model, optimizer):
        for _ in range(8):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()

    monkeypatch.chdir(tmp_path)
    names = {"model": model, "inputs": x[:4], "optimizer": optimizer, "train": train, "batch_size": 64, "samples": 256}
    exec(code, names)
    with pytest.raises(SystemExit) as stop:
        main(["report", "run"])
    assert stop.value.code == 0
    assert (tmp_path / "run" / "report.html").exists()
