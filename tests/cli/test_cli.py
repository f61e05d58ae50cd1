"""The command line as a user meets it: real processes for what depends on one, the entry point for the rest."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import subprocess
import sys

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from isogon import Recipe
from isogon.cli import main

WORKED = (
    "transfer --optimizer sgd --lr 0.1 --wd 0.0016 --momentum 0.9 --batch 512 --samples 80000 --epochs 200 "
    "--to samples=1280000 --solve wd"
)
PREDICT = "predict --lr 0.1 --wd 5e-4 --batch 128 --samples 50000 --epochs 30"


def isogon(command, **variables):
    """Run the command line in this process: (exit code, stdout, stderr)."""
    out, err = io.StringIO(), io.StringIO()
    arguments = shlex.split(command) if isinstance(command, str) else command
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as stop:
        main(arguments)
    return stop.value.code, out.getvalue(), err.getvalue()


def process(*arguments, **options):
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "200"},
        check=False,
        **options,
    )


def test_the_worked_example_as_a_process():
    done = process("-m", "isogon", *WORKED.split())
    assert done.returncode == 0, done.stderr
    assert re.search(r"weight_decay\s+0.0016\s+0.0001\s+← solved", done.stdout)
    assert "The best is expected between 7.1e-05 and 0.0004: Yun et al.'s printed tables" in done.stdout
    for shown in ("tuning factor", "0.25", "0.003244 rad = 0.1859°", "0.6772 rad = 38.8°", "3.996 epochs"):
        assert shown in done.stdout


def test_json_has_the_python_names():
    code, out, _ = isogon(WORKED + " --json")
    answer = json.loads(out)
    assert code == 0
    assert answer["recipe"]["weight_decay"] == pytest.approx(1e-4)
    assert answer["interval"] == pytest.approx([1e-4 / 2**0.5, 4e-4])
    assert answer["regime"] == "several epochs"
    assert answer["summary"].startswith("Set weight decay to 0.0001 (÷16) and keep the learning rate at 0.1")
    assert answer["tuning_factor"] == pytest.approx(0.25)
    assert answer["solved"] == "weight_decay"
    recipe = Recipe(**answer["recipe"])
    assert answer["step_angle"] == pytest.approx(float(recipe.motion.angle(1)))
    assert answer["epoch_angle"] == pytest.approx(float(recipe.motion.angle(recipe.steps_per_epoch)))
    assert answer["timescale_epochs"] * recipe.steps_per_epoch == pytest.approx(recipe.motion.timescale)
    assert answer["warnings"] == []


def test_to_repeats_and_warnings_are_shown():
    code, out, _ = isogon(
        "transfer --lr 1 --wd 1e-4 --momentum 0 --batch 128 --samples 50000 --epochs 100 "
        "--to batch=4096 --to epochs=50 --solve lr"
    )
    assert code == 0
    assert "Plain SGD with batch size 4096" in out
    assert "from 100 to 50" in out


ONCE = "transfer --optimizer AdamW --lr 3e-3 --wd 0.1 --batch 256 --samples 1e6 --epochs 1"


def test_batch_times_four_is_answered_with_a_sentence_an_interval_and_the_evidence():
    code, out, _ = isogon(ONCE + " --to batch=x4")
    assert code == 0
    assert out.startswith("Set weight decay to 0.4 (×4) and keep the learning rate at 0.003.\nRegime: one epoch")
    assert "The best is expected between 0.2 and 0.8: Power Lines" in out
    code, out, _ = isogon(ONCE + " --to samples=x10 --json")
    answer = json.loads(out)
    assert answer["regime"] == "one epoch"
    assert answer["interval"] == pytest.approx([0.01, 0.1])
    assert answer["recipe"]["weight_decay"] == pytest.approx(0.1 / 10**0.5)
    assert "0.53 by Power Lines" in answer["evidence"][0]


def test_a_batch_along_the_stochastic_equation():
    code, out, _ = isogon(ONCE + " --beta1 0.9 --beta2 0.95 --to batch=x4 --rule sde")
    assert code == 0
    assert out.startswith("Set the learning rate to 0.006 (×2), weight decay to 0.2 (×2), beta1 to 0.6, beta2 to 0.8.")


def test_conventions_are_translated():
    code, out, _ = isogon(ONCE + " --to convention=independent --json")
    answer = json.loads(out)
    assert code == 0
    assert answer["recipe"]["weight_decay"] == pytest.approx(3e-4)
    assert answer["recipe"]["convention"] == "independent"
    code, out, _ = isogon(ONCE + " --convention cautious --to batch=x4 --json")
    assert json.loads(out)["intrinsic_lr"] == pytest.approx(3e-3 * 0.4 / 2)


def test_other_programs_settings_are_read(tmp_path):
    file = tmp_path / "args.json"
    file.write_text(
        json.dumps(
            {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 4, "learning_rate": 3e-4,
             "weight_decay": 0.1, "optim": "adamw_torch_fused", "num_train_epochs": 3.0, "max_steps": -1}
        )
    )  # fmt: skip
    code, out, _ = isogon(f"transfer --recipe {file} --devices 2 --samples 100000 --to batch=x4 --json")
    assert code == 0
    assert json.loads(out)["recipe"]["batch_size"] == 256
    code, _, err = isogon(f"transfer --recipe {file} --to batch=x4")
    assert code == 2
    assert "args.json lacks devices, samples" in err
    assert "--devices" in err


def test_predict_says_whether_a_recipe_is_normal():
    code, out, _ = isogon("predict --optimizer adamw --lr 1e-3 --wd 0.05 --batch 1024 --samples 1281167 --epochs 300")
    assert code == 0
    assert "Is this normal? epochs · F is above that of" in out
    assert "DeiT-S/16" in out
    code, out, _ = isogon("predict --published --json")
    assert code == 0
    turning = [entry["turning"] for entry in json.loads(out)]
    assert turning == sorted(turning)
    assert isogon("predict --published")[1].count("https") == 0


@pytest.mark.parametrize("command", ["transfer --to samples=1280000", "predict"])
def test_recipes_come_from_files_and_flags_override(tmp_path, command):
    path = tmp_path / "recipe.toml"
    Recipe(lr=0.1, weight_decay=0.0016, batch_size=512, samples=80_000, epochs=200).save(path)
    code, out, _ = isogon(f"{command} --recipe {path} --lr 0.2 --json")
    assert code == 0
    assert json.loads(out)["recipe"]["lr"] == 0.2


def test_a_transferred_recipe_can_be_saved(tmp_path):
    path = tmp_path / "new.toml"
    assert isogon(f"{WORKED} --save {path}")[0] == 0
    assert Recipe.load(path).weight_decay == pytest.approx(1e-4)
    code, _, err = isogon(f"{WORKED} --save {tmp_path}/nowhere/new.toml")
    assert code == 2
    assert "--save must be a file we can write" in err


def test_predict_shows_the_run():
    code, out, _ = isogon(PREDICT + " --schedule step:15,22/10 --init-norm 2 --json")
    answer = json.loads(out)
    assert code == 0
    lr = dict(zip(answer["curves"]["epoch"], answer["curves"]["lr"], strict=True))
    assert {round(value, 6) for value in lr.values()} == {0.1, 0.01, 0.001}
    assert len(lr) == 31
    assert answer["curves"]["norm"][0] == 2
    assert answer["curves"]["epoch_angle"][0] is None
    code, out, _ = isogon(PREDICT + " --schedule cosine")
    assert code == 0
    assert "of equilibrium" in out


@pytest.mark.parametrize("ending", ["png", "svg", "html"])
def test_predict_draws(tmp_path, ending):
    pytest.importorskip("plotly" if ending == "html" else "matplotlib")
    path = tmp_path / f"run.{ending}"
    assert isogon(f"{PREDICT} --plot {path}")[0] == 0
    head = path.read_bytes()[:200]
    assert {"png": b"\x89PNG", "svg": b"<?xml", "html": b"<html"}[ending] in head


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("transfer", "--lr must be given: add --lr with a number, or --recipe with a file."),
        ("transfer --lr abc", "--lr must be a number, got 'abc': for example 0.1 or 1e-4."),
        (WORKED + " --lr nan", "lr must be a finite number above 0, got nan: give the peak learning rate."),
        (WORKED + " --momentum 1", "momentum must be a finite number at least 0 and below 1, got 1.0"),
        (WORKED + " --to batch", "--to must be name=value"),
        (WORKED + " --to samples=5", "--to must be one value for each name"),
        (WORKED + " --to batch=x", "--to batch_size must be a number, or a factor such as x4 or x0.5, got 'x'"),
        (WORKED + " --optimizer adam", "no universal angle"),
        (WORKED + " --solve depth", "solve must be one of"),
        (WORKED + " --to params=4", "params must be a factor such as x4"),
        (WORKED + " --to batch=xx", "batch_size must be a number, or a factor such as x4"),
        (WORKED + " --devices 2", "--devices must go with --recipe"),
        (WORKED + " --convention cautious", "convention must be coupled for sgd"),
        (WORKED + " --convention l2", "--convention must be one of coupled"),
        (WORKED + " --regime twice", "regime must be one of several epochs"),
        (WORKED + " --tokens-per-sample many", "--tokens-per-sample must be a number"),
        (WORKED + " --wd 0", "without weight decay there is no tuning factor to keep"),
        (WORKED + " --recipe /nowhere.toml", "recipe must be a file we can read, got '/nowhere.toml'"),
        (PREDICT + " --schedule step:20,10", "--schedule must be step:EPOCHS/DIVISOR with rising epochs"),
        (
            PREDICT + " --schedule exp(cosine)",
            "--schedule must be one with weight decay here, got 'exp(cosine)': write cosine",
        ),
        (PREDICT + f" --schedule warmup:{'9' * 400}(step)", "--schedule must be of epochs below 1e9"),
        (PREDICT + f" --schedule lr_{'9' * 400}", "--schedule must be of epochs below 1e9"),
        (PREDICT + " --schedule step:a/b", "--schedule must be step:EPOCHS/DIVISOR with rising epochs"),
        (PREDICT + " --plot run.bmp", "plot must be a file ending in .png"),
        (PREDICT + " --plot /nowhere/run.png", "plot must be in a folder that exists"),
        ("predict --lr 0.1 --wd 0.1 --batch 1 --samples 10", "epochs must be set in the recipe"),
        ("transfer --frobnicate", "No such option: --frobnicate"),
        ("trasnfer", "No such command 'trasnfer'"),
    ],
)
def test_bad_input_ends_with_code_2_and_one_sentence(command, sentence):
    code, out, err = isogon(command)
    assert code == 2
    assert sentence in err
    assert err.count("\n") == 1
    assert out == ""


FLAGS = ["--optimizer", "--lr", "--wd", "--momentum", "--beta2", "--batch", "--samples", "--epochs", "--to", "--solve"]
FLAGS += ["--within", "--json", "--recipe", "--schedule", "--init-norm", "--unit-grad-sq"]
numbers = st.one_of(
    st.floats(), st.integers(-10, 10**20), st.sampled_from([0.1, 0.9, 1e-4, 128, 50_000, 1e308, 5e-324])
).map(str)
tokens = st.one_of(
    numbers,
    st.sampled_from(["sgd", "adamw", "lion", "muon", "nesterov", "adam", "wd", "lr", "batch", "cosine", "step:1,2/3"]),
    st.tuples(st.sampled_from(["samples", "batch", "lr", "wd", "momentum", "epochs", "x"]), numbers).map("=".join),
    st.text(max_size=12),
)
extra = st.lists(st.one_of(st.tuples(st.sampled_from(FLAGS), tokens), st.tuples(tokens)), max_size=5)


@settings(max_examples=100)
@given(command=st.sampled_from(["transfer", "predict", ""]), tail=extra, complete=st.booleans())
@example(command="transfer", tail=[("--recipe", "\0")], complete=True)
@example(command="predict", tail=[("--epochs", "1e9")], complete=True)
@example(command="transfer", tail=[("--beta2", "0.99989"), ("--optimizer", "lion")], complete=True)
def test_nothing_a_user_types_gives_a_traceback(command, tail, complete):
    base = ["--lr", "0.1", "--wd", "1e-3", "--batch", "64", "--samples", "6400", "--epochs", "3"] if complete else []
    arguments = [command, *base, *(word for pair in tail for word in pair)]
    if "demo" in arguments or "--plot" in arguments or "--save" in arguments:
        return
    code, _, err = isogon([word for word in arguments if word or not command])
    assert code in (0, 2)
    assert (code == 2) == bool(err)
    assert err.count("\n") <= 1
    assert "Traceback" not in err


@pytest.mark.parametrize("command", ["transfer", "predict"])
def test_help_teaches_by_an_example_that_works(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setenv("TERMINAL_WIDTH", "300")
    code, out, _ = isogon(f"{command} --help")
    assert code == 0
    lines = [line.strip() for line in out.splitlines() if line.strip().startswith(f"isogon {command} -")]
    assert lines
    for line in lines:
        code, out, err = isogon(line.removeprefix("isogon "))
        assert (code, err) == (0, "")
        assert out


def test_bare_isogon_shows_the_commands_and_version_the_version():
    code, out, _ = isogon([])
    assert code == 0
    assert "transfer" in out
    assert re.match(r"isogon \d+\.\d+", isogon("--version")[1])


def test_a_reader_that_leaves_is_no_error(tmp_path):
    """`isogon … | head -1`: no complaint about the broken pipe."""
    command = f"{shlex.quote(sys.executable)} -m isogon {PREDICT} --json | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.stdout == "{\n"
    assert done.stderr == ""


@pytest.mark.parametrize("command", [WORKED, PREDICT])
def test_the_commands_import_neither_torch_nor_pandas(command):
    script = (
        "import sys\nfrom isogon.cli import main\n"
        f"try:\n    main({command.split()!r})\nexcept SystemExit as stop:\n    assert not stop.code\n"
        "heavy = {'torch', 'pandas', 'pyarrow', 'matplotlib', 'plotly', 'pydantic', 'scipy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = process("-c", script)
    assert done.returncode == 0, done.stderr
