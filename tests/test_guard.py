"""What no check foresaw: one sentence, exit code 2, no secret; and Ctrl-C at any moment without a traceback."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from isogon.cli import app, main
from isogon.errors import ArgumentError, IsogonError, without_secrets
from isogon.guard import run_guarded
from isogon.lab.__main__ import main as lab_main

SECRET = "s3cr3t/p@ss"
ADDRESS = f"postgresql://me:{SECRET}@host/db"


def raising(error):
    def work():
        raise error

    return work


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (ArgumentError("lr", "above 0", -1, "give another"), "lr must be above 0, got -1: give another."),
        (ZeroDivisionError("division by zero"), "isogon did not foresee this: division by zero (ZeroDivisionError)"),
        (RecursionError("maximum recursion depth"), "isogon did not foresee this: maximum recursion depth"),
        (MemoryError(), "There is not enough memory for this"),
        (PermissionError(13, "Permission denied", "/etc/x"), "The system refused: Permission denied (/etc/x)"),
        (BrokenPipeError(32, "Broken pipe"), "The system refused: Broken pipe"),
        (RuntimeError("two\nlines\x1b[2J"), "isogon did not foresee this: two (RuntimeError)"),
        (RuntimeError(f"no way to {ADDRESS}"), "no way to postgresql://me:***@host/db"),
    ],
)
def test_whatever_is_raised_becomes_one_sentence_and_code_2(error, sentence, capsys):
    assert run_guarded(raising(error)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert sentence in err
    assert err.count("\n") == 1
    assert "Traceback" not in err
    assert SECRET not in err


def test_debug_shows_the_traceback_anywhere_on_the_line_and_no_secret(capsys):
    assert run_guarded(raising(RuntimeError(ADDRESS)), debug=True) == 2
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert SECRET not in err
    for arguments in (["--debug", "transfer", "--lr", "x"], ["transfer", "--lr", "x", "--debug"]):
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        assert stop.value.code == 2
        err = capsys.readouterr().err
        assert "Traceback" in err
        assert "--lr must be a number, got 'x'" in err


def test_a_fault_within_a_command_is_guarded(monkeypatch, capsys):
    """A real command whose inside breaks: the command line has one guard for all of them."""
    from isogon.cli import _recipe_commands as recipe_commands

    monkeypatch.setattr(recipe_commands, "_recipe", raising_anything)
    with pytest.raises(SystemExit) as stop:
        main(["transfer", "--lr", "1"])
    assert stop.value.code == 2
    assert capsys.readouterr().err == "isogon did not foresee this: 'lost' (KeyError); --debug shows where.\n"
    assert app.info.name == "isogon"


def raising_anything(*_):
    raise KeyError("lost")


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"\xff\xfe", b"[" * 100_000, b'{"recipe": 3}', b'{"recipe": {"lr": []}}']
)
def test_a_bad_config_ends_the_lab_with_one_sentence(tmp_path, content, capsys):
    (tmp_path / "config.json").write_bytes(content)
    assert lab_main([str(tmp_path / "config.json"), str(tmp_path / "run")]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "text",
    [
        ADDRESS,
        f"storag = '{ADDRESS}'",
        f"{{'run': {{'url': '{ADDRESS}', 'x': 1}}}}",
        f"password={SECRET}&x=1",
        f"{{'password': '{SECRET}'}}",
        f'api_key: "{SECRET}"',
        f"RAY_AUTH_TOKEN={SECRET}",
        f"postgresql://me:{SECRET} with spaces@host/db",
        f"{{'password': ['{SECRET}', '{SECRET}']}}",
        f"{{'password': b'{SECRET}'}}",
        f"{{'password': 'a\\'{SECRET}'}}",
        f'password = """{SECRET}"""',
        f"host=h password=a,b;{SECRET} dbname=d",
        f"token: Bearer {SECRET}",
        f"Authorization: Basic {SECRET}",
        f"AWS_SECRET_ACCESS_KEY={SECRET}",
        f"private_key={SECRET}",
        f"wandb_key={SECRET}",
        f"host=h user=u pw={SECRET}",
        f"pass='{SECRET}'",
        f"auth={SECRET}",
        ADDRESS.replace("://", ":/"),
    ],
)
def test_secrets_are_masked_whatever_the_key(text):
    assert SECRET not in without_secrets(text)
    assert SECRET not in str(IsogonError(text))
    # Cut at its end, an address no longer looks like one; so it is masked before.
    assert SECRET[:6] not in str(ArgumentError("x", "y", "a" * 150 + " " + text, "z"))


def test_masking_takes_no_time_whatever_the_text():
    """A megabyte that begins an address again and again: seconds, where a pattern that goes back would take hours."""
    for long in ("://a:" * 200_000, "a" * 1_000_000, "-token" * 20_000, "--password" * 20_000):
        assert len(str(ArgumentError("x", "y", long, "z"))) < 300
        started = time.process_time()
        without_secrets(long)
        assert time.process_time() - started < 10


@pytest.mark.parametrize(
    "arguments",
    [
        ["search", ADDRESS],
        ["search", "--status", ADDRESS],
        ["report", ADDRESS],
        ["reproduce", ADDRESS],
        ["transfer", "--recipe", ADDRESS, "--to", "batch=x4"],
    ],
)
def test_no_argument_in_a_wrong_place_prints_its_password(arguments, capsys):
    """A path has one slash where an address has two."""
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    out, err = capsys.readouterr()
    assert SECRET not in out + err
    assert "***" in err


def test_what_is_no_secret_stays():
    harmless = ("lr must be above 0", "https://www.cs.toronto.edu/~kriz/cifar.html", "tokens: 5", "see a@b.c")
    for text in (
        *harmless,
        "first pass: 12 trials failed",
        "compass=3",
        "tokenizer: bytes",
        "bypass = 2",
        "tests passed: 3",
        "author = me",
    ):
        assert without_secrets(text) == text


@pytest.mark.parametrize("keys", ['storag = "{}"', 'password = "{}"', 'storage = ["{}"]', 'storage = {{ url = "{}" }}'])
def test_no_slip_in_a_study_prints_its_password(tmp_path, keys, capsys):
    study = '[recipe]\nlr = 0.1\nweight_decay = "?"\nbatch_size = 1\nsamples = 9\nepochs = 1\n[task]\ndata = "digits"\n'
    (tmp_path / "study.toml").write_text(study + "[run]\n" + keys.format(ADDRESS) + "\n")
    with pytest.raises(SystemExit) as stop:
        main(["search", str(tmp_path / "study.toml"), "--out", str(tmp_path / "out")])
    assert stop.value.code == 2
    out, err = capsys.readouterr()
    assert SECRET not in out + err
    assert "study key run." in err


STUDY = """
[recipe]
lr = 0.1
weight_decay = "?"
batch_size = 50
samples = 1600
epochs = 400
[task]
net = "cnn4"
net_options = { width = 4 }
data = "digits"
augmentation = "none"
[run]
workers = 2
"""


@pytest.mark.parametrize("seed", range(3))
def test_ctrl_c_twice_in_the_first_seconds_prints_no_traceback(tmp_path, seed):
    """To the whole group of processes, as a terminal sends it: while modules are imported, while workers start."""
    (tmp_path / "study.toml").write_text(STUDY)
    command = [sys.executable, "-m", "isogon", "search", str(tmp_path / "study.toml"), "--out", str(tmp_path / "out")]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    chance = random.Random(seed)
    # Not within Python's own start, before any line of ours runs.
    time.sleep(0.3 + 2.5 * seed + chance.random())
    for _ in range(2):
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
        time.sleep(0.2 * chance.random())
    _, err = process.communicate(timeout=120)
    # A signal that comes when Python has put its handlers away ends it as the system does; a shell says 130 to both.
    assert process.returncode in (130, -signal.SIGINT), err
    assert "Traceback" not in err, err
    assert "KeyboardInterrupt" not in err, err
    assert json.dumps(err).count("Stopped") <= 1
