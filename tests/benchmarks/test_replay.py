"""A table of trainings as a function: it answers as the runs did from which it was made."""

from __future__ import annotations

import json
import math
from itertools import pairwise

import numpy as np
import optuna
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from replay import ABOUT, Landscape, Replayed
from search_quality import SEARCHERS, at_costs, isogon_one_unknown

from isogon import Recipe
from isogon.errors import ArgumentError
from isogon.lab import lanes, train
from isogon.search import Study, run

RECIPE = Recipe(lr=0.1, weight_decay=0.0, batch_size=32, samples=1600, epochs=10)
EPOCHS = (2, 6, 10)
SPREAD = 0.01


def accuracy(column: int, row: int, fraction: float) -> float:
    """At the end, in the mean of seeds: a hill that grows with the data, its top at column 0, row 1."""
    return 0.7 + 0.1 * fraction - 0.02 * column**2 - 0.03 * (row - 1) ** 2


@pytest.fixture(scope="module")
def table_file(tmp_path_factory):
    """Five by five cells of seeds whose noise is known; at the highest rate and factor one seed of three diverges."""
    random = np.random.default_rng(0)
    rows = []
    for column in range(-2, 3):
        for row in range(-2, 3):
            for fraction in (1 / 16, 1 / 8, 1 / 4, 1.0):
                noise = SPREAD * random.permutation([-1, 0, 1])  # whose spread is 1
                for seed in range(3):
                    place = {"column": column, "row": row, "fraction": fraction, "seed": seed}
                    if (column, row) == (2, 2) and seed == 0:
                        rows.append(place | {"epoch": 3, "diverged": True})
                        continue
                    for epoch in EPOCHS:
                        value = accuracy(column, row, fraction) - 0.02 * (10 - epoch) + noise[seed]
                        rows.append(place | {"epoch": epoch, "test_accuracy": value, "diverged": False})
    work = {"recipe": RECIPE.to_dict(), "lr": 0.1, "factor": 0.2, "step": 2.0}
    file = tmp_path_factory.mktemp("tables") / "hill.parquet"
    table = pa.Table.from_pandas(pd.DataFrame(rows), preserve_index=False)
    about = {"work": work, "metric": "test_accuracy"}
    pq.write_table(table.replace_schema_metadata({ABOUT: json.dumps(about).encode()}), file)
    return file


@pytest.fixture(scope="module")
def hill(table_file):
    return Landscape.read(table_file)


def test_runs_of_a_cell_have_its_mean_and_the_tables_noise(hill):
    random = np.random.default_rng(1)
    runs = [hill.train(0.05, 0.4, 1 / 8, random) for _ in range(2000)]
    scores = np.array([run.score for run in runs])
    assert scores.std() == pytest.approx(100 * SPREAD, rel=0.1)
    assert scores.mean() == pytest.approx(100 * accuracy(-1, 1, 1 / 8), abs=4 * scores.std() / math.sqrt(2000))
    before = np.array([run.history[0][1] for run in runs])
    assert before.mean() == pytest.approx(scores.mean() - 16, abs=0.1)
    assert np.corrcoef(before, scores)[0, 1] > 0.99  # as the seeds of the table have it
    assert [epoch for epoch, _ in runs[0].history] == list(EPOCHS)


def test_between_cells_and_beyond_them(hill):
    corners = [accuracy(column, row, 1.0) for column in (0, 1) for row in (0, 1)]
    assert hill.worth(0.1 * math.sqrt(2), 0.2 * math.sqrt(2)) == pytest.approx(100 * np.mean(corners))
    assert hill.worth(1e-9, 0.4) == hill.worth(0.025, 0.4) == pytest.approx(100 * accuracy(-2, 1, 1.0))
    assert hill.box == (pytest.approx((0.025, 0.4)), pytest.approx((0.05, 0.8)))


def test_regret_is_to_the_best_cell(hill):
    assert hill.regret(0.1, 0.4) == pytest.approx(0, abs=1e-9)
    assert hill.regret(0.2, 0.4) == pytest.approx(2)


def test_as_many_runs_diverge_as_seeds_did(hill):
    random = np.random.default_rng(2)
    lost = np.mean([math.isnan(hill.train(0.4, 0.8, 1.0, random).score) for _ in range(2000)])
    assert lost == pytest.approx(1 / 3, abs=0.04)
    lost = np.mean([math.isnan(hill.train(0.4 / math.sqrt(2), 0.8, 1.0, random).score) for _ in range(2000)])
    assert lost == pytest.approx(1 / 6, abs=0.04)
    # What may diverge is worth less than what its better seeds reached.
    assert hill.worth(0.4, 0.8) < 100 * accuracy(2, 2, 1.0)


def test_a_replay_repeats_itself_and_another_does_not(hill):
    first, same, other = Replayed(hill, 0), Replayed(hill, 0), Replayed(hill, 1)
    assert first.run(0.1, 0.2) == same.run(0.1, 0.2) != other.run(0.1, 0.2)
    assert first.run(0.1, 0.2, seed=1) != first.run(0.1, 0.2)


def test_optuna_runs_on_it_unchanged(hill):
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.RandomSampler(seed=0))
    study.optimize(Replayed(hill, 0).optuna(), n_trials=40)
    assert hill.regret(**study.best_params) < 4


@pytest.mark.parametrize("name", [name for name in SEARCHERS if name != "gp"])
def test_every_searcher_answers_within_the_box_and_its_cost(hill, name):
    (low_lr, high_lr), (_, high) = hill.box
    steps = SEARCHERS[name](Replayed(hill, 0), 0)
    for step in steps:
        assert 0 < step.cost <= 31
        assert low_lr * 0.999 <= step.lr <= high_lr * 1.001
        assert 0 < step.tuning_factor < 100 * high
    assert all(a.cost < b.cost for a, b in pairwise(steps))
    found = [(step.cost, hill.regret(step.lr, step.tuning_factor)) for step in steps]
    (last,) = at_costs([found] * 2, guess=9.0)[-1:]
    assert last["regret"] >= 0
    assert last["error"] == 0


OBJECTIVE = """
import sys
sys.path.insert(0, {folder!r})
from replay import Landscape, Replayed
objective = Replayed(Landscape.read({table!r}), 5)
"""


def test_our_search_answers_as_it_does_with_real_trials(hill, table_file, tmp_path):
    """The benchmark leaves out its processes and files; the answer is the same."""
    import replay

    (step,) = isogon_one_unknown(Replayed(hill, 5), 5)
    file = tmp_path / "replayed.py"
    file.write_text(OBJECTIVE.format(folder=str(replay.__file__).rpartition("/")[0], table=str(table_file)))
    recipe = {"lr": step.lr, "weight_decay": "?", "batch_size": 32, "samples": 1600, "epochs": 10}
    study = Study.from_tables({"recipe": recipe, "task": {"objective": f"{file}:objective"}})
    outcome = run(study, tmp_path / "out", workers=1, progress=False)
    assert outcome.trend.tuning_factor == pytest.approx(step.tuning_factor, rel=1e-6)
    assert step.cost == pytest.approx(sum(trial.planned.fraction for trial in outcome.trials))


def test_a_table_is_made_of_real_trainings_and_continued(tmp_path, monkeypatch, capsys):
    import make_table

    recipe = Recipe(lr=0.1, weight_decay=0.0, batch_size=20, samples=320, epochs=2)
    options = {"net": "cnn4", "net_options": {"width": 2}, "data": "digits", "augmentation": "none"}
    work = make_table.Work(recipe, lr=0.1, factor=0.2, step=4.0, columns=(0, 1), rows=(0, 1), settings=options)
    monkeypatch.setitem(make_table.WORKS, "little", work)
    monkeypatch.setattr(make_table, "_MARGIN", 0)
    monkeypatch.setattr(make_table, "_SEEDS", 2)
    trained = []

    def count(configs):
        trained.extend(configs)
        return lanes(configs)

    monkeypatch.setattr(make_table, "lanes", count)

    def fill(minutes: float) -> bool:
        table = make_table.Table("little", tmp_path)
        until = make_table.time.monotonic() + 60 * minutes
        return make_table.fill(table, engine="lanes", workers=None, until=until, command="test", scratch=tmp_path)

    monkeypatch.setattr(make_table, "_BATCH_OF_RUNS", 9)
    assert not fill(0)
    assert trained == []
    assert fill(10)
    # 4 cells: 2 seeds at 3 parts, 1 at all; then 5 seeds of each, as there are no more than 5 cells.
    assert len(trained) == 4 * (2 * 3 + 5) == len({config.key for config in trained})
    for config in trained:
        factors = {0.2: 0, 0.8: 1}
        assert min(abs(config.recipe.tuning_factor / factor - 1) for factor in factors) < 1e-9
    assert fill(10)
    assert len(trained) == 44
    found = Landscape.read(tmp_path / "little.parquet")
    whole = [config for config in trained if (config.recipe.samples, config.seed) == (320, 3)]
    (one,) = [config for config in whole if config.recipe.lr == 0.4 and config.recipe.tuning_factor > 0.5]
    rows = make_table.Table("little", tmp_path).rows.query("column == 1 and row == 1 and fraction == 1 and seed == 3")
    assert float(rows.test_accuracy.iloc[-1]) == pytest.approx(train(one).accuracy, abs=0.02)
    assert found.fractions == [1 / 16, 1 / 8, 1 / 4, 1.0]
    assert "best so far" in capsys.readouterr().out


@pytest.mark.parametrize("content", [b"", b"PAR1", b"no table"])
def test_what_is_no_table_is_refused_in_a_sentence(tmp_path, monkeypatch, capsys, content):
    import make_table

    file = tmp_path / "cnn4-sgd.parquet"
    file.write_bytes(content)
    with pytest.raises(ArgumentError, match="table must be a file of make_table"):
        Landscape.read(file)
    monkeypatch.setattr("sys.argv", ["make_table.py", "cnn4-sgd", "--plan", "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as stop:
        make_table.main()
    assert stop.value.code == 2
    assert "remove it" in capsys.readouterr().err


def test_a_grid_grows_to_the_side_of_its_best_cell(tmp_path, monkeypatch):
    import make_table

    monkeypatch.setitem(make_table.WORKS, "little", make_table.Work(RECIPE, 0.1, 0.2, settings={"data": "digits"}))
    table = make_table.Table("little", tmp_path)
    assert table.ranges() == ((-3, 3), (-3, 3))
    runs = [run for run in table.missing() if run.fraction == 1 / 16]

    def end(top: tuple[int, int], noise: float) -> None:
        random = np.random.default_rng(0)
        heights = [-0.1 * abs(run.column - top[0]) - 0.1 * abs(run.row - top[1]) for run in runs]
        values = np.array(heights) + noise * random.standard_normal(len(runs))
        places = pd.DataFrame([run._asdict() for run in runs])
        table.rows = places.assign(test_accuracy=values, diverged=False, epoch=10)
        table._ended = set(runs)

    assert {run.seed for run in runs} == {0, 1, 2}
    end((0, 1), 0.001)
    assert table.ranges() == ((-3, 3), (-3, 3))
    end((3, -2), 0.001)
    assert table.ranges() == ((-3, 5), (-4, 3))
    end((0, -2), 0.3)  # a row further in is as good, for all that the noise tells
    assert table.ranges() == ((-3, 3), (-3, 3))
