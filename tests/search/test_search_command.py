"""`isogon search` as a user meets it: one real, small search in a process of its own, the rest on what it left."""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tomllib

import pytest

from isogon import Recipe
from isogon.cli import main

pytest.importorskip("optuna")
pytest.importorskip("pydantic")

from isogon.search import study_template
from isogon.search.study._study import Study

STUDY = """
[recipe]
lr = 0.1
weight_decay = "?"
batch_size = 50
samples = 800
epochs = 2

[task]
net = "cnn4"
net_options = { width = 4, scale_invariant = "affine", norm = "ghost" }
data = "digits"
augmentation = "none"

[search]
fractions = ["1/4"]
grid = [0.3, 0.9, 2.7]
seeds = 2

[run]
engine = "lanes"
workers = 1
"""


def python(*arguments, cwd):
    """A process in another folder that finds the same modules as this one."""
    environment = {**os.environ, "COLUMNS": "80", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    """The folder in which `isogon search small.toml` was called once, and what that process said."""
    folder = tmp_path_factory.mktemp("searched")
    (folder / "small.toml").write_text(STUDY)
    done = python("-m", "isogon", "search", "small.toml", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder, done


@pytest.fixture
def isogon(monkeypatch, capsys):
    """Run the command line in this process: (exit code, stdout, stderr)."""

    def call(*arguments):
        with pytest.raises(SystemExit) as stop:
            main([str(argument) for argument in arguments])
        return stop.value.code, *capsys.readouterr()

    return call


def ledger(folder):
    """(tuning factor, seed, accuracy) of every finished trial, straight from the database."""
    query = """
        SELECT param_value, value_json, value FROM trials
        JOIN trial_params USING (trial_id) JOIN trial_values USING (trial_id)
        JOIN trial_user_attributes USING (trial_id) WHERE key = 'seed' AND state = 'COMPLETE'
    """
    with sqlite3.connect(folder / "small-search" / "study.db") as database:
        return sorted((factor, int(seed), value) for factor, seed, value in database.execute(query))


def figures(page):
    return json.loads(re.search(r'id="figures">(.*?)</script>', page.read_text(encoding="utf-8"), re.DOTALL)[1])


def test_a_search_ends_with_a_recipe_that_predict_reads(searched, isogon):
    folder, done = searched
    path = folder / "small-search" / "recipe.toml"
    recipe = Recipe.load(path)
    shown = re.search(r"^weight_decay +(\S+) +90 % interval (\S+) … (\S+)", done.stdout, re.MULTILINE)
    value, low, high = (float(number) for number in shown.groups())
    assert value == pytest.approx(recipe.weight_decay, rel=1e-3)
    assert low < value < high
    assert f"tuning factor  {recipe.tuning_factor:.4g} " in done.stdout
    assert "isogon predict --recipe small-search/recipe.toml" in done.stdout
    code, out, _ = isogon("predict", "--recipe", path, "--json")
    assert code == 0
    assert json.loads(out)["recipe"]["weight_decay"] == recipe.weight_decay


def test_the_page_is_named_alone_and_has_the_ledgers_numbers(searched):
    folder, done = searched
    assert done.stdout.splitlines()[-1] == os.path.join("small-search", "report.html")
    rows = ledger(folder)
    assert len(rows) == 6
    dots = figures(folder / "small-search" / "report.html")["figures"]["accuracies"]["data"][0]
    wanted = sorted((factor, float(f"{100 * accuracy:.6g}")) for factor, _, accuracy in rows)
    assert sorted(zip(dots["x"], dots["y"], strict=True)) == wanted


def test_what_it_says_of_its_cost_is_what_was_trained(searched):
    folder, done = searched
    results = [json.loads(file.read_text()) for file in folder.glob("small-search/trials/*/result.json")]
    images = sum(result["images"] for result in results)
    assert len(results) == len(ledger(folder))
    assert f"The search saw {images:,} images, {images / (6 * 2 * 800):.3g} of the 9,600" in done.stdout


def test_the_status_agrees_and_leaves_the_storage_alone(searched, isogon, tmp_path):
    folder, _ = searched
    rows = ledger(folder)
    copy = shutil.copytree(folder / "small-search", tmp_path / "renamed")
    (copy / "outcome.json").unlink()
    before = (copy / "study.db").read_bytes()
    # Somebody writes meanwhile: a reader that wanted to write would wait in vain.
    writer = sqlite3.connect(copy / "study.db", isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    code, out, err = isogon("search", "--status", copy, "--json")
    assert (code, err) == (0, "")
    answer = json.loads(out)
    code, out, _ = isogon("search", "--status", copy)
    writer.close()
    assert (copy / "study.db").read_bytes() == before
    assert (answer["finished"], answer["running"], answer["waiting"]) == (len(rows), 0, 0)
    means = {factor: sum(a for f, _, a in rows if f == factor) / 2 for factor, _, _ in rows}
    (only,) = answer["fractions"]
    assert (only["samples"], only["fraction"]) == (200, 0.25)
    assert only["best"]["accuracy"] == pytest.approx(max(means.values()))
    assert code == 0
    assert re.search(rf"1/4 +200 +{len(rows)} +0 +0 +0 +0", out)
    assert f"mean accuracy {100 * max(means.values()):.2f} % over 2 seeds" in out
    assert "Not finished yet" in out
    assert "Ended: weight_decay" in isogon("search", "--status", folder / "small-search")[1]


def test_the_same_command_again_trains_nothing(searched, isogon, monkeypatch):
    folder, done = searched
    monkeypatch.chdir(folder)
    before = {file: file.stat().st_mtime_ns for file in folder.glob("small-search/trials/*/*")}
    code, out, err = isogon("search", "small.toml")
    assert code == 0
    assert (out, err) == (done.stdout, "")
    assert {file: file.stat().st_mtime_ns for file in folder.glob("small-search/trials/*/*")} == before
    code, out, err = isogon("search", "small.toml", "--json")
    answer = json.loads(out)
    assert code == 0
    assert answer["recipe"] == Recipe.load("small-search/recipe.toml").to_dict()
    assert answer["page"] == os.path.join("small-search", "report.html")
    assert "best tuning factor" in err


def test_a_study_that_changed_is_refused(searched, isogon, tmp_path):
    folder, _ = searched
    copy = shutil.copytree(folder / "small-search", tmp_path / "small-search")
    changed = tmp_path / "changed.toml"
    changed.write_text(STUDY.replace("epochs = 2", "epochs = 3"))
    code, out, err = isogon("search", changed, "--out", copy)
    assert (code, out) == (2, "")
    assert "--fresh" in err
    assert err.count("\n") == 1


def test_an_interrupt_ends_with_130_and_a_word(isogon, monkeypatch, tmp_path):
    (tmp_path / "good.toml").write_text(STUDY)

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("isogon.search._run.run", interrupted)
    code, out, err = isogon("search", tmp_path / "good.toml", "--out", tmp_path / "out")
    assert (code, out) == (130, "")
    assert "the same command resumes" in err


def test_the_init_file_is_a_study_that_names_every_key(isogon):
    code, out, err = isogon("search", "--init")
    assert (code, err) == (0, "")
    assert out == study_template()
    study = Study.from_tables(tomllib.loads(out))
    assert study.task.data == "fashion-mini"
    for name, table in Study.model_fields.items():
        part = re.search(rf"^\[{name}\]\n(.*?)(?=^\[|\Z)", out, re.MULTILINE | re.DOTALL)[0]
        for key in table.annotation.model_fields:
            assert re.search(rf"^(# )?{key} = ", out if key == "objective" else part, re.MULTILINE), f"{name}.{key}"


def test_the_defaults_that_the_init_file_names_are_the_defaults():
    """A commented key that is not an alternative says what holds without it."""
    study = Study.from_tables(tomllib.loads(study_template()))
    optional = {
        "beta2",
        "clip",
        "data_root",
        "micro_batch",
        "init_seed",
        "grid",
        "trials",
        "workers",
        "device",
        "name",
        "ray",
        "objective",
    }
    commented = re.findall(r"^# (\w+) = (.*?)(?:  +#.*)?$", study_template(), re.MULTILINE)
    tables = [study.recipe, study.task, study.search, study.run]
    assert len(commented) > 10
    for key, text in commented:
        if key not in optional:
            (table,) = (table for table in tables if key in type(table).model_fields)
            assert tomllib.loads(f"{key} = {text}")[key] == getattr(table, key), key


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("seeds = 2", "sedes = 2", r"study key search\.sedes is none that isogon knows: did you mean seeds\?"),
        ('weight_decay = "?"', 'weigth_decay = "?"', r"recipe\.weigth_decay is none .*: did you mean weight_decay\?"),
        ('["1/4"]', '["1e99999999"]', r"study (key|table) search\.fractions"),
        ("seeds = 2", "seeds = 0", r"study key search\.seeds must be greater than or equal to 1, got 0: "),
        ("lr = 0.1\n", "", r"study key recipe\.lr is missing"),
        ('weight_decay = "?"', "weight_decay = 0.1", r"study table recipe needs exactly one"),
        ('["1/4"]', '["1/0"]', r"study table search\.fractions must be numbers"),
        ('"lanes"', '"trains"', r"study key run\.engine must be "),
        ("[run]", "[run", r"study must be a TOML file"),
    ],
)
def test_a_bad_key_ends_with_2_and_one_sentence_that_names_it(isogon, tmp_path, monkeypatch, old, new, sentence):
    monkeypatch.chdir(tmp_path)
    assert old in STUDY
    (tmp_path / "bad.toml").write_text(STUDY.replace(old, new, 1))
    code, out, err = isogon("search", "bad.toml")
    assert (code, out) == (2, "")
    assert re.search(sentence, err), err
    assert err.count("\n") == 1
    assert not (tmp_path / "bad-search").exists(), "a refused study leaves nothing behind"


def test_bad_calls_end_with_2_and_one_sentence(isogon, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.toml").write_text(STUDY)
    (tmp_path / "empty").mkdir()
    bad = [
        [],
        ["good.toml", "--init"],
        ["nowhere.toml"],
        ["good.toml", "--engine", "steam"],
        ["good.toml", "--workers", "0"],
        ["good.toml", "--out", "good.toml"],
        ["--status", "nowhere"],
        ["--status", "empty"],
    ]
    for arguments in bad:
        code, out, err = isogon("search", *arguments)
        assert (code, out) == (2, ""), arguments
        assert err.count("\n") == 1, arguments
        assert "Traceback" not in err
    assert {path.name for path in tmp_path.iterdir()} == {"good.toml", "empty"}


@pytest.mark.parametrize("library", ["optuna", "pydantic"])
def test_a_missing_library_is_named_with_its_extra(isogon, monkeypatch, tmp_path, library):
    (tmp_path / "good.toml").write_text(STUDY)
    hidden = [name for name in sys.modules if name == library or name.startswith(f"{library}.")]
    for name in hidden:
        monkeypatch.setitem(sys.modules, name, None)
    for name in [name for name in sys.modules if name.startswith("isogon.search.")]:
        monkeypatch.delitem(sys.modules, name)
    code, out, err = isogon("search", tmp_path / "good.toml", "--out", tmp_path / "out")
    assert (code, out) == (2, "")
    assert re.fullmatch(rf"{library} is needed .* run pip install 'isogon\[search\]'\.\n", err)


def test_other_commands_do_not_pay_for_it(tmp_path):
    script = (
        "import sys\nimport isogon.cli\n"
        "heavy = {'torch', 'pandas', 'optuna', 'pydantic', 'isogon.search'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = python("-c", script, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
