"""Reproducing: runs are shared, kept and gone on with; a result's file tells where it comes from."""

from __future__ import annotations

import contextlib
import io
import json
import math
import resource
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from isogon.cli import main
from isogon.errors import ArgumentError
from isogon.lab.engines._workers import keep_workers
from isogon.papers.reproduction import _runner as running
from isogon.papers.reproduction._experiment import Options, Planned, cell_of, final_row
from isogon.papers.reproduction._registry import experiments
from isogon.papers.reproduction._results import read_reproduction
from isogon.papers.reproduction._runner import reproduce

HERE = {"engine": "local", "device": "cpu", "workers": 1, "progress": False}
#: core-seconds that all experiments at scale tiny may take; some 110 are usual, and machines differ by half
BUDGET = 180


@pytest.fixture(scope="module", autouse=True)
def _worker_kept():
    """To start a worker takes seconds."""
    with keep_workers():
        yield


def isogon(*arguments):
    """Run the command line in this process: (exit code, stdout, stderr)."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as stop:
        main(["reproduce", *arguments])
    return stop.value.code, out.getvalue(), err.getvalue()


def endings(out):
    """When each run below `out` ended."""
    return {file.parent.name: file.stat().st_mtime_ns for file in out.glob("runs/*/result.json")}


def test_runs_are_shared_and_a_second_call_trains_nothing(toys, tmp_path):
    table, figure, computed = reproduce(list(toys.values()), out=tmp_path, **HERE)
    before = endings(tmp_path)
    assert len(before) == 2, "three places in two experiments are two runs"
    assert len(table.table) == 3
    assert set(figure.table.panel) == {"a", "bc"}
    assert computed.table.value.tolist() == [1.0, 2.0]
    assert [one.judgement.verdict for one in (table, figure, computed)] == ["holds"] * 3
    ends = figure.table.groupby(["panel", "row"]).test_accuracy.last()
    assert ends.to_dict() == table.table.set_index(["panel", "row"]).accuracy.to_dict()
    again = reproduce(list(toys.values()), out=tmp_path, **HERE)
    assert endings(tmp_path) == before
    for one, other in zip((table, figure, computed), again, strict=True):
        pd.testing.assert_frame_equal(one.table, other.table)
        assert one.to_dict() == other.to_dict()


def test_rows_of_a_run_are_read_once_for_experiments_that_keep_the_same(toys, tmp_path):
    read = []

    def keep(run):
        read.append(run.config.name)
        return final_row(run)

    table = replace(toys["yun/table"], keep=keep)
    twin, figure = replace(table, id="yun/twin"), toys["yun/figure"]
    one, other, curves = reproduce([table, twin, figure], out=tmp_path, **HERE)
    assert len(read) == len(set(read)) == 2, "two runs in three places of two experiments"
    pd.testing.assert_frame_equal(one.table, other.table)
    assert one.table.panel.tolist() == ["a", "a", "bc"], "each place has its own labels"
    assert "train_loss" in curves.table, "what keeps something else has rows of its own"
    reproduce([table], out=tmp_path, **HERE)
    assert len(read) == 4, "nothing stays from call to call"


@pytest.mark.parametrize("content", ["", "[]", "nonsense"])
def test_files_that_cannot_be_read_are_named(toys, tmp_path, content):
    """A result's or a run's: one sentence that names it, with a cure."""
    table = next(iter(toys.values()))
    reproduce([table], out=tmp_path, **HERE)
    results = sorted((tmp_path / "results").iterdir())
    run = next((tmp_path / "runs").glob("*/result.json"))
    for file in results:
        before = file.read_bytes()
        file.write_text(content)
        with pytest.raises(ArgumentError, match=r"remove its files"):
            reproduce([table], Options(seeds=1), out=tmp_path, **HERE)
        file.write_bytes(before)
    run.write_text(content)
    with pytest.warns(UserWarning, match="are damaged: it is trained again"):
        reproduce([table], Options(seeds=1), out=tmp_path, **HERE)


def test_what_is_computed_is_computed_once_for_the_same_options(toys, tmp_path):
    asked = []

    def compute(options):
        asked.append(options)
        return pd.DataFrame({"panel": ["a", "b"], "label": [1, "x"]})

    one = replace(toys["la/computed"], compute=compute)
    for options in (Options(), Options(), Options(panels=("b",))):
        (found,) = reproduce([one], options, out=tmp_path, **HERE)
    assert asked == [Options(), Options(panels=("b",))]
    assert found.table.label.tolist() == ["1", "x"], "the other panel stays, and labels of two kinds are texts"
    kept = read_reproduction(tmp_path / "results", one, "tiny")
    pd.testing.assert_frame_equal(kept.table, found.table)


def test_nothing_computed_is_no_source(toys, tmp_path):
    one = replace(toys["yun/table"], compute=lambda options: pd.DataFrame())
    (found,) = reproduce([one], Options(seeds=1), out=tmp_path, **HERE)
    assert found.sources
    assert all(source.is_training for source in found.sources)


def test_interrupted_it_keeps_what_ended_and_goes_on(toys, tmp_path, monkeypatch):
    monkeypatch.setattr(running, "PARTIAL_EVERY", 0.0)
    interruptions = [KeyboardInterrupt]

    def keep(run):
        if interruptions:
            raise interruptions.pop()
        return final_row(run)

    def show(rows):
        return [] if len(rows) == 3 else rows["no such column"]

    one = replace(toys["yun/table"], keep=keep, show=show)
    with pytest.raises(KeyboardInterrupt):
        reproduce([one], out=tmp_path, **HERE)
    partial = json.loads((tmp_path / "results" / "yun-table.tiny.json").read_text())
    assert (partial["verdict"], partial["sentence"]) == ("undecided", "Only 1 of 2 runs have ended.")
    assert len(pd.read_parquet(tmp_path / "results" / "yun-table.tiny.parquet")) == 1
    before = endings(tmp_path)
    (found,) = reproduce([one], out=tmp_path, **HERE)
    assert len(before) == 1
    assert before.items() < endings(tmp_path).items()
    assert found.judgement.verdict == "holds"


def test_tables_are_written_while_runs_end(toys, tmp_path, monkeypatch):
    monkeypatch.setattr(running, "PARTIAL_EVERY", 0.0)
    seen = []
    write = running._write
    monkeypatch.setattr(
        running,
        "_write",
        lambda reproduction, *rest: seen.append(len(reproduction.table)) or write(reproduction, *rest),
    )
    reproduce([toys["yun/table"]], out=tmp_path, **HERE)
    assert (seen[0], seen[-1]) == (1, 3), "first when one run has ended, last when all have"


def test_a_failed_run_is_counted_named_and_tried_again(toys, toy_registry, toy_config, tmp_path):
    def plan(options):
        bad = toy_config(1e-3, 0, data=f"npz:{tmp_path / 'absent.npz'}")
        good = [Planned(toy_config(1e-2, 0), {"row": "0.01", "seed": 0})]
        return [*good, Planned(bad, {"row": "0.001", "seed": 0}), Planned(bad, {"row": "0.01", "seed": 1})]

    toy_registry["yun/table"] = replace(toys["yun/table"], plan=plan)
    toy_registry["yun/figure"] = replace(toys["yun/figure"], plan=plan)
    arguments = ("yun/table", "yun/figure", "--workers", "1", "--device", "cpu", "--out", str(tmp_path / "out"))
    code, printed, err = isogon(*arguments)
    assert code == 1
    assert "1 runs failed" in err
    assert "absent.npz" in err
    assert "1 of 2 failed" in printed
    made = json.loads((tmp_path / "out" / "results" / "yun-table.tiny.json").read_text())
    assert made["runs"] == {"planned": 2, "finished": 1, "diverged": 0, "failed": 1, "pruned": 0}
    saved = read_reproduction(tmp_path / "out" / "results", toy_registry["yun/figure"], "tiny")
    assert len(saved.table) == 1, "a run without epochs has no curve"


def test_the_file_says_where_the_result_comes_from_and_its_command_makes_it_again(toy_registry, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = Options(panels=("b",), columns=("100",), seeds=2)
    (reproduction,) = reproduce([toy_registry["yun/table"]], options, **HERE)
    assert len(reproduction.table) == 2, "panel bc is b too"
    file = tmp_path / "reproduction" / "results" / "yun-table.tiny.json"
    made = json.loads(file.read_text())
    assert made["seeds"] == [0, 1]
    assert made["choices"] == ["the batch size"]
    assert made["images"] == 200
    assert made["seconds"] > 0
    assert made["hardware"]
    assert any(fact.startswith("torch ") for fact in made["versions"])
    before = endings(tmp_path / "reproduction")
    code, _, _ = isogon(*shlex.split(made["command"])[2:])
    assert code == 0
    assert json.loads(file.read_text()) == made
    assert endings(tmp_path / "reproduction") == before


def test_curves_without_a_monitor_have_no_angles(toys, toy_config, tmp_path):
    plan = [Planned(toy_config(1e-3, 0, monitor_every=0), {"row": "x"})]
    watched, unwatched = (
        reproduce([replace(toys["yun/figure"], plan=lambda options, ones=ones: ones)], out=tmp_path, **HERE)[0].table
        for ones in ([Planned(toy_config(1e-3, 0), {"row": "x"})], plan)
    )
    assert list(watched.columns) == list(unwatched.columns)
    assert watched.epoch_angle.notna().all()
    assert unwatched.epoch_angle.isna().all()
    assert unwatched.train_loss.notna().all()


def test_a_cell_leaves_out_what_did_not_finish():
    rows = pd.DataFrame(
        {"status": ["finished", "finished", "diverged", "failed"], "accuracy": [0.8, 0.9, np.nan, np.nan]}
    )
    cell = cell_of(rows, unit=100)
    assert (cell.mean, cell.survived, cell.runs, cell.failed) == (pytest.approx(85), 2, 4, 1)
    assert cell.spread == pytest.approx(10 / math.sqrt(2))


def test_nothing_to_run_is_said(toys, tmp_path):
    nothing = replace(toys["yun/table"], plan=lambda options: (), unavailable="The data are gone.")
    (reproduction,) = reproduce([nothing], out=tmp_path, **HERE)
    assert (reproduction.judgement.verdict, reproduction.judgement.sentence) == ("not run", "The data are gone.")
    assert (tmp_path / "results" / "yun-table.tiny.parquet").exists()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (Options(columns=("7",)), "columns must be among those of yun/table at scale tiny, got '7': it has 100."),
        (Options(panels=("d",)), "panels must be among those of yun/table at scale tiny, got 'd': it has a, b, c."),
        (Options(scale="huge"), "scale must be one of tiny, small, paper"),
    ],
)
def test_what_an_experiment_does_not_have_is_refused(toys, tmp_path, options, sentence):
    with pytest.raises(ArgumentError) as refused:
        reproduce([toys["yun/table"]], options, out=tmp_path, **HERE)
    assert str(refused.value).startswith(sentence)


def test_panels_of_something_computed_are_refused_too(toys, tmp_path):
    with pytest.raises(ArgumentError, match="got 'c': it has a, b"):
        reproduce([toys["la/computed"]], Options(panels=("c",)), out=tmp_path, **HERE)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("yun/tabel", "did you mean yun/table"),
        ("", "needs one of"),
        ("yun/table --all", "needs one of"),
        ("yun/table --scale huge", "--scale must be one of"),
        ("yun/table --engine steam", "--engine must be one of"),
        ("yun/table --device abacus", "--device must be"),
        ("yun/table --device cuda:99", "--device must be one of this machine's"),
        ("yun/table --columns ,", "--columns must be"),
        ("yun/table --panels q", "panels must be among"),
        ("yun/table --out FILE/below", "out must be a folder we can make"),
    ],
)
def test_bad_input_is_one_sentence(toy_registry, tmp_path, arguments, message):
    (tmp_path / "file").touch()
    code, out, err = isogon(*arguments.replace("FILE", str(tmp_path / "file")).split())
    assert code == 2
    assert out == ""
    assert message in err
    assert err.count("\n") == 1


def test_the_list_is_complete():
    code, out, _ = isogon("--list", "--json")
    listed = json.loads(out)
    assert code == 0
    figures = {"yun": range(1, 10), "lla": range(1, 14), "la": range(1, 7), "smd": range(2, 10)}
    wanted = {f"{paper}/fig{number}" for paper, numbers in figures.items() for number in numbers}
    wanted |= {f"yun/table{number}" for number in range(1, 12)}
    wanted |= {"lla/table1", "la/toy", "la/degrees", "smd/table1", "smd/table2"}
    assert len(listed) == 52
    assert {entry["id"] for entry in listed} == wanted
    for entry in listed:
        assert all(entry[name] for name in ("paper", "title", "claim")), entry["id"]
    images = {entry["id"]: entry["images"] for entry in listed}
    # 105 cells of which panels share the bottom row, three seeds, 300 epochs; an epoch drops the last part of a batch.
    sizes = (3125, 6250, 12500, 25000, 50000)
    assert images["yun/table1"] == (7 + 6 + 6) * 3 * 300 * sum(size // 128 * 128 for size in sizes)
    assert {name for name, count in images.items() if not count} == {
        "lla/table1", "la/toy", "la/degrees", "smd/fig4", "smd/fig5"
    }  # fmt: skip
    assert images["smd/table2"] == 2 * 360_000 * 16
    code, out, _ = isogon("--list")
    assert code == 0
    assert all(entry["id"] in out for entry in listed)


# What follows from theory shows at any scale; accuracies of a few short runs may say anything.
FOLLOWS_THEORY = {"lla/table1", "la/toy", "la/degrees", *(f"smd/fig{number}" for number in range(2, 10))}


def test_everything_at_scale_tiny(tmp_path):
    """All experiments, as a user calls them; in one test, so that they are trained once however tests are spread."""
    out = tmp_path / "out"
    options = ["--scale", "tiny", "--device", "cpu", "--workers", "1", "--json", "--out", str(out)]
    try:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-m", "isogon", "reproduce", "--all", *options]
        done = subprocess.run(command, capture_output=True, text=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert done.returncode == 0, done.stderr[-5000:]
        entries = json.loads(done.stdout)
        assert [entry["id"] for entry in entries] == list(experiments())
        for identity, entry in zip(experiments(), entries, strict=True):
            stem = f"{identity.replace('/', '-')}.tiny"
            assert entry["verdict"] in ("holds", "fails", "undecided", "not run"), identity
            assert entry["sentence"], identity
            assert entry["verdict"] != "not run" or entry["unavailable"], identity
            assert entry["verdict"] != "fails" or identity not in FOLLOWS_THEORY, entry["sentence"]
            for file in (f"results/{stem}.json", f"results/{stem}.parquet", f"exhibits/{stem}.html"):
                assert (out / file).exists(), file
            if entry["verdict"] != "not run":
                drawn = [(out / "exhibits" / f"{stem}{ending}").exists() for ending in (".tex", ".png")]
                assert any(drawn), f"{identity} shows neither table nor figure"
            saved = read_reproduction(out / "results", experiments()[identity], "tiny")
            assert saved.judgement.verdict == entry["verdict"], "the verdict is a function of what was kept"
        assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < BUDGET
        ended = endings(out)
        # Each kind of experiment once more; to draw all of them takes a while.
        ids = ("yun/table1", "yun/fig2", "la/degrees", "smd/table1")
        code, printed, err = isogon(*ids, *options)
        assert code == 0, err
        assert endings(out) == ended
        assert json.loads(printed) == [entry for entry in entries if entry["id"] in ids]
    finally:
        # A page has all of Plotly within: together they are hundreds of megabytes.
        shutil.rmtree(out, ignore_errors=True)
