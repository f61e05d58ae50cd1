"""From records to what is drawn: data in, data out."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isogon.dynamics import RunFolder, findings, read_epochs
from isogon.dynamics.record._tables import table
from isogon.errors import ArgumentError
from isogon.recipe import Recipe
from isogon.report.run._metrics import metric_lines
from isogon.report.run._tables import PANELS, lines, marks, summarise, thin


def rows(layer="a", *, lr=(1.0,) * 4, **columns):
    steps = range(len(lr))
    return table({"step": steps, "epoch": [step // 2 for step in steps], "layer": layer, "lr": lr, **columns})


def test_each_line_is_a_column_of_its_layer(records):
    layers = ["all", "stem.conv.weight"]
    drawn_lines = lines(records, layers)
    assert {line.layer for line in drawn_lines} == set(layers)
    for line in drawn_lines:
        column = line.panel.predicted if line.predicted else line.panel.measured
        values = records[records.layer == line.layer].set_index("step")[column].dropna()
        assert line.step.tolist() == values.index.tolist()
        unit = np.degrees if "degrees" in line.panel.title else np.asarray
        np.testing.assert_allclose(line.value, unit(values))
        assert line.epoch.tolist() == [step // 8 for step in line.step]
    drawn = {(line.panel.measured, line.predicted) for line in drawn_lines if line.layer == "all"}
    assert drawn == {(p.measured, guess) for p in PANELS for guess in (False, True)} - {("effective_lr", True)}


def test_epoch_angles_lie_at_the_ends_of_epochs(records):
    (line,) = (line for line in lines(records, ["all"]) if line.panel.measured == "epoch_angle" and not line.predicted)
    assert line.step.tolist() == list(range(7, 64, 8))


def test_what_a_logarithmic_axis_cannot_show_is_left_out():
    (line,) = lines(rows(norm=[0.0, 2.0, np.nan, np.inf]), ["a"])
    assert (line.step.tolist(), line.value.tolist()) == ([1], [2.0])
    assert lines(rows(), ["a"]) == []


@given(st.lists(st.floats(-9, 9), min_size=1, max_size=300), st.integers(4, 40))
def test_thinning_keeps_ends_and_extremes_within_its_limit(values, most):
    array = np.array(values)
    places = thin(array, most)
    assert len(places) <= max(most, 1)
    assert np.all(np.diff(places) > 0)
    assert {0, len(values) - 1} <= set(places.tolist())
    shown = array[places]
    assert (shown.min(), shown.max()) == (array.min(), array.max())
    if len(values) <= most:
        assert len(places) == len(values)


def test_long_runs_are_thinned():
    long = rows(lr=[1.0] * 5000, norm=1 + np.random.default_rng(0).random(5000))
    (line,) = lines(long, ["a"])
    assert 900 < len(line.value) <= 1000
    assert line.value.max() == long.norm.max()


def test_drops_are_marked_once_and_slow_decays_are_not(records):
    (mark,) = marks(records)
    assert (mark.step, mark.factor) == (40, pytest.approx(10))
    assert marks(rows(lr=[1.0, 0.9, 0.8, 0.7])) == []
    assert [mark.step for mark in marks(rows(lr=[1.0, 1.0, 0.5, 0.5, 0.1]))] == [2, 4]


def test_a_summary_tells_the_whole_run(run_folder, records):
    run = summarise(run_folder)
    assert run.name == "first run"
    assert run.recipe == Recipe(lr=0.1, weight_decay=5e-3, batch_size=16, samples=128)
    assert run.layers == ["all", "stem.conv.weight", "body.1.conv.weight", "body.3.conv.weight"]
    assert run.findings == findings(records, run.recipe)
    assert "early_decay" in {finding.name for finding in run.findings}


def test_chosen_layers_limit_the_lines_and_not_the_findings(run_folder):
    run = summarise(run_folder, ["body.3.conv.weight"])
    assert run.layers == ["body.3.conv.weight"]
    assert {line.layer for line in run.lines} == {"body.3.conv.weight"}
    assert run.findings == summarise(run_folder).findings
    with pytest.raises(ArgumentError, match="layer must be one of all, stem"):
        summarise(run_folder, ["nowhere"])


def test_metrics_are_the_columns_of_the_epochs_with_numbers_in_them(metrics_folder, run_folder, evil):
    by_name = {line.name: line for line in summarise(metrics_folder).metrics}
    assert list(by_name) == ["loss", "val/loss", "accuracy", evil]
    assert [line.kind for line in by_name.values()] == ["loss", "loss", "accuracy", evil]
    table = read_epochs(metrics_folder)
    for name, line in by_name.items():
        assert line.value.tolist() == table[name].tolist(), "zeros and negative numbers too"
        assert (line.step.tolist(), line.epoch.tolist()) == (table.step.tolist(), table.epoch.tolist())
    assert summarise(metrics_folder / "records.parquet").metrics[0].name == "loss"
    assert summarise(run_folder).metrics == [], "its loop gave the monitor none"


def test_metrics_of_one_kind_are_neighbours_and_gaps_are_left_out():
    table = pd.DataFrame(
        {"epoch": [1, 0], "step": [9, 4], "loss": [1.0, 2.0], "f1": [np.inf, 0.5], "eval_loss": [3, 4]}
    )
    metrics = metric_lines(table)
    assert [line.name for line in metrics] == ["loss", "eval_loss", "f1"]
    assert metrics[0].value.tolist() == [2.0, 1.0]
    assert (metrics[2].step.tolist(), metrics[2].value.tolist()) == ([4], [0.5])


def test_a_broken_table_of_epochs_is_refused(run_folder, tmp_path):
    for name, write in {
        "noise": lambda file: file.write_bytes(b"noise"),
        "stepless": lambda file: pd.DataFrame({"epoch": [0], "loss": [1.0]}).to_parquet(file),
    }.items():
        folder = shutil.copytree(run_folder, tmp_path / name)
        write(folder / "epochs.parquet")
        with pytest.raises(ArgumentError, match="epochs can be read") as refusal:
            summarise(folder)
        assert "\n" not in str(refusal.value)


def test_a_file_of_records_is_a_run_too(run_folder, records, tmp_path):
    assert summarise(run_folder / "records.parquet").name == "first run"
    records.to_parquet(tmp_path / "alone.parquet")
    run = summarise(tmp_path / "alone.parquet")
    assert (run.name, run.recipe, run.findings) == ("alone.parquet", None, findings(records, None))
    assert len(run.lines) == len(summarise(run_folder).lines)


@pytest.mark.parametrize(
    ("about", "complaint"),
    [
        ("{", "run.json must be a JSON file"),
        ("[]", "run.json must be a JSON file that holds an object"),
        (json.dumps({"recipe": {"lr": -1, "weight_decay": 0, "batch_size": 1, "samples": 1}}), "lr must be"),
        (json.dumps({"recipe": {"speed": 1}}), "sound recipe"),
    ],
)
def test_a_broken_run_json_is_refused(records, tmp_path, about, complaint):
    RunFolder(tmp_path)(records)
    (tmp_path / "run.json").write_text(about)
    with pytest.raises(ArgumentError, match=complaint) as refusal:
        summarise(tmp_path)
    assert "\n" not in str(refusal.value)


def test_bad_runs_are_refused_in_one_sentence(records, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "noise.parquet").write_bytes(b"noise")
    table().to_parquet(tmp_path / "none.parquet")
    records.assign(norm="wide").to_parquet(tmp_path / "words.parquet")
    for name in ("nowhere", "empty", "noise.parquet", "none.parquet", "words.parquet"):
        with pytest.raises(ArgumentError, match=f"path must be .*{name}") as refusal:
            summarise(tmp_path / name)
        assert "\n" not in str(refusal.value)
