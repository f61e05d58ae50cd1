"""Results of some panels, columns or seeds are added to those of the others, and nothing that still stands is lost."""

from __future__ import annotations

import json
from dataclasses import replace

import pandas as pd
import pytest

from isogon.errors import ArgumentError
from isogon.lab.engines._workers import keep_workers
from isogon.papers.reproduction._experiment import Options, Planned
from isogon.papers.reproduction._fingerprint import code_fingerprint
from isogon.papers.reproduction._merging import merge
from isogon.papers.reproduction._provenance import (
    COMPUTED,
    WAITING,
    Source,
    computation_source,
    place_of,
    provenance_of,
)
from isogon.papers.reproduction._results import Reproduction, read_reproduction
from isogon.papers.reproduction._runner import reproduce

HERE = {"engine": "local", "device": "cpu", "workers": 1, "progress": False}


@pytest.fixture
def experiment(toys, toy_config):
    """Columns 100 and 200 of two rows each; the seeds are those asked for, else one."""

    def plan(options):
        return [
            Planned(toy_config(decay, seed), {"column": column, "row": f"{decay:g}", "seed": seed})
            for column, decays in ((100, (1e-3, 2e-3)), (200, (3e-3, 4e-3)))
            for decay in decays
            for seed in range(options.seeds or 1)
        ]

    return replace(toys["yun/table"], plan=plan)


def result_of(experiment, *, column=None, seeds=None, accuracy=0.5, status="finished", command="isogon", error=""):
    """What a call that asked for a column (all of them: None) with some seeds would find."""
    options = Options(columns=None if column is None else (str(column),), seeds=seeds)
    planned = [training for training in experiment.plan(options) if column in (None, training.labels["column"])]
    facts = {"images": 100, "seconds": 1.5, "hardware": "abacus", "versions": "torch 2", "date": "2026-01-01"}
    sources = [
        Source(
            place_of(training.labels),
            training.config.name,
            status,
            command,
            seed=training.config.seed,
            error=error,
            **facts,
        )
        for training in planned
    ]
    rows = [{"status": status, "accuracy": accuracy, **training.labels} for training in planned if status != WAITING]
    return Reproduction(experiment, options, pd.DataFrame(rows), provenance_of(command, sources), sources)


def places(reproduction):
    return [source.place for source in reproduction.sources]


def test_columns_add_up_in_the_order_of_the_plan(experiment):
    first, second = result_of(experiment, column=100, command="one"), result_of(experiment, column=200, command="two")
    for whole in (merge(second, first), merge(first, second)):
        assert whole.table["column"].tolist() == [100, 100, 200, 200]
        assert places(whole) == places(result_of(experiment))
        assert whole.made["runs"]["planned"] == whole.made["runs"]["finished"] == 4
        assert whole.made["images"] == 400
        assert whole.made["seconds"] == 6
        assert set(whole.made["command"].split(" && ")) == {"one", "two"}
        assert set(whole.options.columns) == {"100", "200"}
        assert whole.judgement.sentence == "4 rows."
    assert merge(result_of(experiment), first).options.columns is None


def test_the_same_again_replaces_and_counts_once(experiment):
    whole = merge(result_of(experiment, accuracy=0.75), result_of(experiment, column=100, accuracy=0.25))
    assert whole.table["accuracy"].tolist() == [0.75] * 4
    assert whole.made["runs"]["planned"] == 4
    assert whole.made == result_of(experiment).made


def test_seeds_add_up(experiment):
    more, fewer = result_of(experiment, column=100, seeds=3), result_of(experiment, column=100, seeds=1, accuracy=0.75)
    whole = merge(fewer, more)
    assert whole.table["accuracy"].tolist() == [0.75, 0.5, 0.5] * 2
    assert whole.made["seeds"] == [0, 1, 2]
    assert whole.options.seeds == 3


@pytest.mark.parametrize(("status", "error"), [(WAITING, ""), ("failed", "MemoryError")])
def test_rows_stay_until_their_training_has_ended_well_again(experiment, status, error):
    old = result_of(experiment, column=100, accuracy=0.25)
    new = result_of(experiment, status=status, error=error)
    whole = merge(new, old)
    assert whole.table.loc[whole.table["column"] == 100, "accuracy"].tolist() == [0.25] * 2
    assert whole.made["runs"]["finished"] == 2
    assert len(whole.made["errors"]) == (4 if error else 0), "that it failed is told all the same"
    assert not merge(result_of(experiment, column=200), whole).made["errors"], "and forgotten at the next call"


def test_what_failed_or_waits_is_not_carried_along(experiment):
    for status in (WAITING, "failed"):
        whole = merge(result_of(experiment, column=100), result_of(experiment, column=200, status=status))
        assert whole.table["column"].tolist() == [100, 100]
        assert whole.made["runs"]["planned"] == 2


def test_rows_of_trainings_that_would_be_others_now_are_dropped(experiment, toy_config):
    old = result_of(experiment, column=100)

    def plan(options):
        return [
            replace(training, config=toy_config(0.5, training.config.seed)) for training in experiment.plan(options)
        ]

    assert merge(result_of(replace(experiment, plan=plan), column=200), old).table["column"].tolist() == [200, 200]


def computed(experiment, panels, *, value=1.0, code=None):
    options = Options(panels=panels)
    rows = [{"panel": panel, "value": value} for panel in panels or "ab"]
    source = computation_source(options, code or code_fingerprint(experiment.compute), f"panels {panels}", 0.0)
    return Reproduction(experiment, options, pd.DataFrame(rows), provenance_of("", [source]), [source])


def test_computed_panels_add_up_as_long_as_the_code_is_the_same(toys):
    experiment = toys["la/computed"]
    whole = merge(computed(experiment, ("b",), value=2.0), computed(experiment, ("a",)))
    assert whole.table.values.tolist() == [["a", 1.0], ["b", 2.0]]
    assert whole.made["command"] == "panels ('a',) && panels ('b',)"
    assert merge(computed(experiment, None, value=2.0), whole).table["value"].tolist() == [2.0, 2.0]
    assert merge(computed(experiment, ("b",)), computed(experiment, ("a",), code="0")).table["panel"].tolist() == ["b"]
    assert [source.status for source in whole.sources] == [COMPUTED] * 2


def test_computed_rows_and_trained_ones_are_told_apart(experiment, toys):
    both = replace(experiment, compute=toys["la/computed"].compute)
    old = merge(computed(both, ("a",)), result_of(both, column=100))
    assert len(old.table) == 3
    whole = merge(merge(computed(both, ("b",)), result_of(both, column=200)), old)
    assert whole.table["panel"].dropna().tolist() == ["a", "b"]
    assert whole.table["column"].dropna().tolist() == [100, 100, 200, 200]


def test_what_cannot_be_computed_here_stays_as_it_was(toys):
    experiment = toys["la/computed"]
    nothing = Reproduction(
        experiment, Options(), pd.DataFrame(), provenance_of("isogon", [], ["It needs a thing."]), ()
    )
    assert nothing.judgement.verdict == "not run"
    assert nothing.judgement.sentence == "It needs a thing."
    whole = merge(nothing, computed(experiment, None))
    assert whole.table["panel"].tolist() == ["a", "b"]
    assert not whole.missing


def test_sources_come_back_from_their_file(experiment, tmp_path):
    old = result_of(experiment, error='a "quoted", long\tstory')
    old = replace(old, sources=[replace(source, key=f"000{place}") for place, source in enumerate(old.sources)])
    old.write(tmp_path)
    assert list(read_reproduction(tmp_path, experiment, "tiny").sources) == old.sources
    listed = pd.read_csv(tmp_path / "yun-table.tiny.csv")
    assert listed["place"][0] == "column=100, row=0.001, seed=0"


def test_panels_of_several_calls_make_one_result(toys, toy_config, tmp_path):
    """By way of files and of real trainings."""
    experiment, messages, out = toys["yun/table"], [], tmp_path / "out"

    def call(experiment, panel):
        return reproduce([experiment], Options(panels=(panel,)), out=out, tell=messages.append, **HERE)[0]

    with keep_workers():
        call(experiment, "b")
        call(experiment, "a")
    saved = read_reproduction(out / "results", experiment, "tiny")
    assert saved.table["panel"].tolist() == ["a", "a", "bc"]
    assert saved.made["runs"]["finished"] == 2, "of three places two are one training"
    again = call(experiment, "a")
    pd.testing.assert_frame_equal(again.table, saved.table)
    assert json.loads(json.dumps(again.to_dict())) == json.loads((out / "results" / "yun-table.tiny.json").read_text())
    assert not messages

    def plan(options):
        other = toy_config(0.5, 0)
        return [replace(it, config=other) if it.labels["panel"] == "bc" else it for it in experiment.plan(options)]

    assert set(call(replace(experiment, plan=plan), "a").table["panel"]) == {"a"}
    assert messages == ["1 earlier trainings of yun-table.tiny: the experiment would now make them differently."]


def test_results_without_their_runs_are_added_to_as_well(experiment, tmp_path):
    """As where they are committed."""
    result_of(experiment, column=100).write(tmp_path / "results")
    # Nothing is to be trained by this call, though with the seed of the old rows there would be.
    idle = replace(experiment, plan=lambda options: experiment.plan(options) if options.seeds else [])
    (whole,) = reproduce([idle], Options(), out=tmp_path, **HERE)
    assert whole.table["column"].tolist() == [100, 100]


def test_results_that_do_not_tell_their_sources_are_not_overwritten(toys, tmp_path):
    experiment = toys["la/computed"]
    (earlier,) = reproduce([experiment], Options(panels=("a",)), out=tmp_path, **HERE)
    replace(earlier, sources=()).write(tmp_path / "results")
    before = (tmp_path / "results" / "la-computed.tiny.parquet").read_bytes()
    with pytest.raises(ArgumentError, match="move those away"):
        reproduce([experiment], Options(panels=("b",)), out=tmp_path, **HERE)
    assert (tmp_path / "results" / "la-computed.tiny.parquet").read_bytes() == before
    (again,) = reproduce([experiment], Options(panels=("a",)), out=tmp_path, **HERE)
    assert again.table["panel"].tolist() == ["a"]
