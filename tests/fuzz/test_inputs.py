"""Mutated inputs: whatever a user gives, a sentence or an answer, in bounded time and memory, and no secret.

Each case takes something good (arguments, a study, a config, a run's folder, a study's folder, a data file), damages it
at random, and calls the command line in this process. Case k of a kind follows from `ISOGON_FUZZ_SEED` and k alone, and
a failure names both. 500 cases by default; `make test-slow` tries 20,000.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import lzma
import os
import random
import resource
import shutil
import signal
import struct
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isogon.cli import main
from isogon.errors import ArgumentError, IsogonError

pytest.importorskip("optuna")
pillow = pytest.importorskip("PIL.Image")

SEED = int(os.environ.get("ISOGON_FUZZ_SEED", "0"))
# In each file that may hold one; nothing that is printed does.
SECRET = "hunter2-geheim"
ADDRESS = f"postgresql://me:{SECRET}@127.0.0.1:1/db"
MOST_SECONDS, MOST_BYTES = 10, 10**9

#: what numbers and names are replaced by
ODD = [
    *("", " ", "0", "-1", "-0.0", "1e308", "-1e308", "1e-320", "1e99999999", "nan", "inf", "-inf", "NaN", "1/0"),
    *("½", "٣", "9" * 400, "9" * 5000, "0x10", "1_000", "true", "null", "None", "[]", "{}", "[[]]", "'", '"', "\\"),
    *("\n", "\0", "\x1b[2J", "../../x", "/etc/passwd", "/dev/null", "~", "a" * 5000, "\ud800", "💥", "?", "x4"),
    *("step:1,2/1e308", "cosine", ADDRESS),
]
#: what whole files are replaced by
WHOLE = (b"", b"[" * 2000, b"{" * 2000, b"\xff\xfe", b"\0" * 100, b"null", b"[]", b"{}")


class TooLong(BaseException):
    """A case that took longer than any may; not an Exception, which a reader of damaged files would take for damage."""


@contextlib.contextmanager
def limit_resources() -> Iterator[None]:
    """At most so many seconds, and so much memory more than the process has at the start."""

    def over(*_):
        raise TooLong

    with Path("/proc/self/statm").open() as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(MOST_SECONDS)
    resource.setrlimit(resource.RLIMIT_AS, (now + MOST_BYTES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def call(arguments: list[str], about: str, command: Callable[[list[str]], None] = main) -> int:
    """The command line with these arguments; fails where it does anything that it must not."""
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        warnings.catch_warnings(),
        limit_resources(),
    ):
        warnings.simplefilter("ignore")
        try:
            command(arguments)
            pytest.fail(f"{about}: the command did not end by itself")
        except SystemExit as stop:
            code = stop.code
        except TooLong:
            pytest.fail(f"{about}: {arguments} took more than {MOST_SECONDS} s")
        except BaseException as error:
            pytest.fail(f"{about}: {arguments} raised {type(error).__name__}: {error}")
    output = out.getvalue() + err.getvalue()
    assert code in (0, 1, 2), f"{about}: {arguments} ended with {code}"
    assert "Traceback" not in output, f"{about}: {arguments} printed a traceback"
    assert "did not foresee" not in output, f"{about}: {arguments} was caught by the last guard alone: {output[-500:]}"
    assert "not enough memory" not in output, f"{about}: {arguments} wanted more memory than any case may"
    assert SECRET not in output, f"{about}: {arguments} printed a password"
    if code == 2:
        assert len(err.getvalue().splitlines()) == 1, f"{about}: {arguments} said {err.getvalue()!r}"
        assert err.getvalue().strip().isprintable(), f"{about}: {arguments} said {err.getvalue()!r}"
    return code


def call_lab(arguments: list[str], about: str) -> int:
    """`python -m isogon.lab` with these arguments, held to what the command line is."""
    from isogon.lab.__main__ import main as lab_main

    return call(arguments, about, lambda words: sys.exit(lab_main(words)))


def check_sentence(error: IsogonError, about: str) -> None:
    assert len(str(error).splitlines()) == 1, f"{about}: {error}"
    assert SECRET not in str(error), f"{about}: {error}"


def odd(chance: random.Random) -> str:
    if chance.random() < 0.3:
        return f"{chance.choice('-+ ')}{chance.uniform(0, 10):.3g}e{chance.randint(-330, 330)}".strip()
    return chance.choice(ODD)


def damaged_bytes(content: bytes, chance: random.Random) -> bytes:
    """Bits turned over, stretches cut out, doubled or replaced, the end lost, or something else altogether."""
    data = bytearray(content)
    for _ in range(chance.randint(1, 4)):
        kind = chance.randrange(7)
        place = chance.randrange(len(data) + 1)
        length = chance.choice((1, 2, 4, 16, 200))
        if kind == 0 and data:
            data[place % len(data)] ^= 1 << chance.randrange(8)
        elif kind == 1:
            del data[place : place + length]
        elif kind == 2:
            data[place:place] = data[place : place + length]
        elif kind == 3:
            data[place : place + length] = chance.randbytes(length)
        elif kind == 4:
            del data[place:]
        elif kind == 5:
            data[place:place] = odd(chance).encode("utf-8", "replace")
        elif chance.random() < 0.2:
            data = bytearray(chance.choice(WHOLE))
    return bytes(data)


#: what other programs save of a training, by the name of the file
SETTINGS = {
    name: text.replace("; ", "\n").encode()
    for name, text in {
        "recipe.toml": 'optimizer = "sgd"; lr = 0.1; weight_decay = 5e-4; batch_size = 128; samples = 50000',
        "arguments.json": '{"per_device_train_batch_size": 8, "learning_rate": 3e-4, "max_steps": 9}',
        "args.yaml": "opt: sgd; lr: null; lr_base: 0.1; batch_size: 128; epochs: 300; weight_decay: 2e-5",
        "config.py": "batch_size = 12; gradient_accumulation_steps = 5 * 8; learning_rate = 6e-4; max_iters = 600",
        "run.sh": "train --matrix-lr 0.02 --weight-decay=0.2 --total-batch-size=524288 --num-iterations 2205",
    }.items()
}
RECIPE = {"--lr": "0.1", "--wd": "5e-4", "--batch": "128", "--samples": "50000", "--epochs": "90"}


def recipe_arguments(chance: random.Random, folder: Path) -> list[str]:
    command = chance.choice(("transfer", "predict"))
    options = {
        **RECIPE,
        "--momentum": "0.9",
        "--optimizer": chance.choice(("sgd", "adamw", "lion", "muon", "nesterov")),
    }
    more = {
        "transfer": {
            "--to": chance.choice(
                ("batch=512", "batch=x4", "samples=x0.1", "params=x3", "beta2=half-life", "width=x2")
            ),
            "--solve": "wd",
            "--within": "2",
            "--beta2": "0.99",
            "--rule": chance.choice(("factor", "sde")),
            "--regime": chance.choice(("several epochs", "one epoch", "short run")),
            "--convention": chance.choice(("coupled", "decoupled", "independent", "cautious")),
            "--tokens-per-sample": "2048",
        },
        "predict": {"--schedule": "step:30,60/10", "--init-norm": "2", "--unit-grad-sq": "3"},
    }[command]
    options |= {name: value for name, value in more.items() if chance.random() < 0.6}
    for _ in range(chance.randint(1, 3)):
        name = chance.choice(list(options))
        kind = chance.randrange(4)
        if kind == 0:
            options[name] = odd(chance)
        elif kind == 1:
            options[name] = options[name].replace(chance.choice(options[name] or "x"), odd(chance)[:20])
        elif kind == 2:
            options[name] = f"{chance.uniform(-1, 2):.3g}e{chance.randint(-30, 30)}"
        else:
            del options[name]
            options = options or dict(RECIPE)
    if chance.random() < 0.2:
        name = chance.choice(list(SETTINGS))
        file = folder / name
        file.write_bytes(damaged_bytes(SETTINGS[name], chance))
        options = {"--recipe": str(file)}
        if name != "recipe.toml":
            options |= {"--devices": chance.choice(("1", "8", odd(chance))), "--samples": "50000"}
        if command == "transfer":
            options["--to"] = "batch=512"
    arguments = [command, *(word for pair in options.items() for word in pair)]
    return [*arguments, "--json"] if chance.random() < 0.3 else arguments


def fuzz_recipes(chance: random.Random, folder: Path, about: str) -> None:
    call(recipe_arguments(chance, folder), about)


STUDY = f"""
[recipe]
lr = 0.1
weight_decay = "?"
batch_size = 50
samples = 1600
epochs = 2
[task]
objective = "fuzz_objective.py:objective"
metric = "accuracy"
[search]
fractions = ["1/16", "1/8"]
centre = 0.125
seeds = 1
[run]
workers = 1
storage = "{ADDRESS}"
name = "study"
ray = {{ cpus = 1, address = "auto" }}
"""


def fuzz_studies(chance: random.Random, folder: Path, about: str) -> None:
    """Read and checked; what is refused is refused by the command too. What passes is not searched here."""
    from isogon.search import Study

    lines = STUDY.strip().splitlines()
    for _ in range(chance.randint(1, 3)):
        place = chance.randrange(len(lines))
        kind, line = chance.randrange(5), lines[place]
        if kind == 0 and "=" in line:
            quoted = chance.random() < 0.5
            value = odd(chance)
            lines[place] = f"{line.split('=')[0]}= " + (json.dumps(value) if quoted else value)
        elif kind == 1 and "=" in line:
            key, value = line.split("=", 1)
            spot = chance.randrange(len(key))
            lines[place] = f"{key[:spot]}{chance.choice('xyz_')}{key[spot + 1 :]}={value}"
        elif kind == 2:
            del lines[place]
        elif kind == 3:
            lines.insert(place, chance.choice(lines))
        else:
            lines[place] = damaged_bytes(line.encode(), chance).decode("utf-8", "replace")
        lines = lines or [""]
    file = folder / "study.toml"
    file.write_bytes("\n".join(lines).encode("utf-8", "replace"))
    try:
        with limit_resources():
            Study.read(file)
    except IsogonError as error:
        check_sentence(error, about)
        assert call(["search", str(file), "--out", str(folder / "out")], about) == 2


def fuzz_configs(chance: random.Random, folder: Path, about: str) -> None:
    """`python -m isogon.lab` up to where it would train: the config read, checked, its data and network tried."""
    from isogon.files import read_json
    from isogon.lab.run._config import Config
    from isogon.lab.run._networks import try_out
    from isogon.recipe import Recipe

    recipe = Recipe(lr=0.1, weight_decay=1e-3, batch_size=10, samples=40, epochs=1)
    good = Config(recipe=recipe, net="cnn4", net_options={"width": 2}, data="digits", augmentation="none").to_dict()
    content = json.loads(json.dumps(good))
    for _ in range(chance.randint(1, 3)):
        table = content["recipe"] if chance.random() < 0.4 and isinstance(content.get("recipe"), dict) else content
        name = chance.choice([*table, "extra"])
        things = (odd(chance), -1, 0, 1e308, 10**400, None, True, [], {}, [[1]], {"a": {}}, "x:y", "step:1,2/1e308")
        table[name] = chance.choice(things)
    text = json.dumps(content).encode()
    (folder / "config.json").write_bytes(damaged_bytes(text, chance) if chance.random() < 0.3 else text)
    try:
        with limit_resources(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            config = Config.from_dict(read_json(folder / "config.json", "config"))
            assert config.name == os.path.basename(config.name), f"{about}: {config.name}"
            if config.recipe.samples <= 2000 and config.recipe.batch_size <= 2000:
                try_out(config)
    except IsogonError as error:
        check_sentence(error, about)
        assert call_lab([str(folder / "config.json"), str(folder / "run")], about) == 2
    except TooLong:
        pytest.fail(f"{about}: {content} took more than {MOST_SECONDS} s")


def fuzz_run_folders(chance: random.Random, folder: Path, about: str, good: Path) -> None:
    place = folder / "run"
    shutil.copytree(good, place)
    for _ in range(chance.randint(1, 2)):
        file = chance.choice(sorted(file for file in place.iterdir() if file.is_file()))
        if file.suffix == ".parquet" and chance.random() < 0.6:
            _odd_table(file, chance)
        else:
            file.write_bytes(damaged_bytes(file.read_bytes(), chance))
    call(["report", str(place)], about)


def _odd_table(file: Path, chance: random.Random) -> None:
    """A table that can be read and holds what it should not."""
    import pandas as pd

    try:
        table = pd.read_parquet(file)
    except (OSError, ValueError):  # damaged before
        return
    column = chance.choice(list(table.columns))
    things = (None, "x", [1.0], {"a": 1}, 1e308, -1e308, float("inf"), 2**62, -(2**62), "\x1b[2J\n", b"x")
    kind = chance.randrange(4)
    if kind == 0:
        table[column] = [chance.choice(things)] * len(table)
    elif kind == 1:
        table = table.drop(columns=column)
    elif kind == 2:
        table = table.iloc[:0]
    else:
        table = pd.concat([table, table.sample(frac=0.5, random_state=chance.randrange(99))])
    with contextlib.suppress(Exception):  # not everything fits into a Parquet file
        table.to_parquet(file, index=False)


def fuzz_trials(chance: random.Random, folder: Path, about: str, good: tuple[Any, Path, Any]) -> None:
    """A training of which files were damaged half-way: the same command ends it as if nothing had happened."""
    from isogon.lab import train

    config, stopped, whole = good
    place = folder / "run"
    shutil.copytree(stopped, place)
    files = sorted(file for file in place.iterdir() if file.is_file() and file.name != ".lock")
    victims = chance.sample(files, chance.randint(1, 2))
    for file in victims:
        file.write_bytes(damaged_bytes(file.read_bytes(), chance))
    try:
        with warnings.catch_warnings(), limit_resources():
            warnings.simplefilter("ignore")
            run = train(config, place, progress=False)
    except ArgumentError as error:  # neither file still tells whose folder it is
        if {file.name for file in victims} != {"config.json", "checkpoint.pt"}:
            pytest.fail(f"{about}: {error}")
        return
    assert run.epochs.drop(columns="images_per_second").equals(whole), f"{about}: it ended with other numbers"


def fuzz_status_folders(chance: random.Random, folder: Path, about: str, good: Path) -> None:
    place = folder / "study"
    shutil.copytree(good, place)
    for name in chance.sample(["study.json", "outcome.json", "study.db", "recipe.toml"], chance.randint(1, 2)):
        (place / name).write_bytes(damaged_bytes((place / name).read_bytes(), chance))
    call(["search", "--status", str(place), *(["--json"] if chance.random() < 0.3 else [])], about)


def fuzz_data_files(chance: random.Random, folder: Path, about: str) -> None:
    from isogon.lab.data import _loading as loading

    kind = chance.choice(("idx", "npz", "npz.xz", "images", "text"))
    images = np.arange(4 * 64, dtype=np.uint8).reshape(4, 8, 8)
    labels = np.arange(4) % 2
    if kind == "idx":
        contents = {}
        for part in ("train", "t10k"):
            contents[f"{part}-images-idx3-ubyte"] = b"\0\0\x08\x03" + struct.pack(">III", 4, 8, 8) + images.tobytes()
            contents[f"{part}-labels-idx1-ubyte"] = (
                b"\0\0\x08\x01" + struct.pack(">I", 4) + labels.astype("u1").tobytes()
            )
        victim = chance.choice(list(contents))
        contents[victim] = damaged_bytes(contents[victim], chance)
        for name, content in contents.items():
            packed = chance.random() < 0.3
            (folder / f"{name}{'.gz' if packed else ''}").write_bytes(gzip.compress(content) if packed else content)
        name, root = "mnist", folder
    elif kind == "images":
        for part in ("train", "val"):
            for label in "ab":
                (folder / part / label).mkdir(parents=True)
                pillow.new("RGB", (8, 8), (len(part), 0, 0)).save(folder / part / label / "0.png")
        victim = folder / "train" / "a" / "0.png"
        victim.write_bytes(damaged_bytes(victim.read_bytes(), chance))
        size = chance.choice(("", "?size=16", f"?size={odd(chance)}", "?", "?siz=3"))
        name, root = f"imagefolder:{folder}{size}", None
    elif kind == "text":
        content = damaged_bytes(b"one line of a text\n" * 200, chance)
        (folder / "text.txt").write_bytes(content)
        option = chance.choice(("", "?context=4", f"?context={odd(chance)}", "?", "?contex=3"))
        name, root = f"text:{folder}{chance.choice(('/text.txt', ''))}{option}", None
    else:
        stream = io.BytesIO()
        np.savez_compressed(stream, train_x=images, train_y=labels, test_x=images, test_y=labels)
        content = damaged_bytes(stream.getvalue(), chance)
        if kind == "npz.xz":
            content = damaged_bytes(lzma.compress(stream.getvalue()), chance)
        (folder / f"set.{kind}").write_bytes(content)
        name, root = f"npz:{folder}/set.{kind}", None
    loading._read.cache_clear()
    try:
        with limit_resources(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loading.load(name, root)
    except IsogonError as error:
        check_sentence(error, about)
    except TooLong:
        pytest.fail(f"{about}: {name} took more than {MOST_SECONDS} s")


@pytest.fixture(scope="module")
def good_run(tmp_path_factory) -> Path:
    """The folder of a small run that was watched."""
    import torch
    from torch import nn

    from isogon.dynamics import Monitor, RunFolder

    folder = tmp_path_factory.mktemp("good") / "run"
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 36, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-3)
    x, y = torch.randn(16, 1, 8, 8), torch.randint(0, 3, (16,))
    with Monitor(model, optimizer, batch_size=16, samples=64, every_steps=1, sinks=[RunFolder(folder)]) as monitor:
        for step in range(12):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            if step % 4 == 3:
                monitor.end_epoch(loss=float(loss))
    return folder


@pytest.fixture(scope="module")
def good_study(tmp_path_factory) -> Path:
    """The folder of a small study that has ended."""
    from isogon.search import Study, run
    from isogon.search.trials import _execution as execution

    folder = tmp_path_factory.mktemp("good") / "study"
    source = folder.parent / "fuzz_objective.py"
    top = "0.9 - 0.01 * math.log2(trial.recipe.tuning_factor) ** 2"
    source.write_text(f"import math\n\ndef objective(trial):\n    return {top}\n")
    tables = {
        "recipe": {"lr": 0.1, "weight_decay": "?", "batch_size": 50, "samples": 1600, "epochs": 2},
        "task": {"objective": f"{source}:objective"},
        "search": {"seeds": 1, "fractions": ["1/16"]},
    }

    def in_turn(jobs, *, on_event, claim):
        for job in jobs:
            if claim(job):
                job.work(on_event)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(execution, "pool_for", lambda *_, **__: in_turn)
        run(Study.from_tables(tables), folder, progress=False)
    return folder


@pytest.fixture(scope="module")
def good_trial(tmp_path_factory) -> tuple[Any, Path, Any]:
    """A config, the folder of its training stopped after one epoch of two, and the epochs of the whole one."""
    from isogon.lab import Config, train
    from isogon.recipe import Recipe

    recipe = Recipe(lr=0.1, weight_decay=1e-3, batch_size=20, samples=40, epochs=2)
    config = Config(
        recipe=recipe, net="cnn4", net_options={"width": 2}, data="digits", augmentation="none", monitor_every=1
    )
    folder = tmp_path_factory.mktemp("good") / "trial"

    def stop(row):
        raise InterruptedError

    with pytest.raises(InterruptedError):
        train(config, folder, progress=False, report=stop)
    return config, folder, train(config, progress=False).epochs.drop(columns="images_per_second")


#: kind → its share of the cases
SHARES = {
    "recipes": 190, "studies": 100, "configs": 65, "data_files": 60, "run_folders": 40, "status_folders": 30,
    "trials": 15,
}  # fmt: skip


def one_case(kind: str, number: int, folder: Path, request) -> None:
    about = f"ISOGON_FUZZ_SEED={SEED}, {kind} {number}"
    chance = random.Random(f"{SEED} {kind} {number}")
    folder.mkdir()
    do: Callable[..., None] = globals()[f"fuzz_{kind}"]
    good = {"run_folders": "good_run", "status_folders": "good_study", "trials": "good_trial"}.get(kind)
    try:
        do(chance, folder, about, *([request.getfixturevalue(good)] if good else []))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize("kind", SHARES)
def test_mutated_inputs_get_a_sentence_or_an_answer(kind, tmp_path, monkeypatch, request):
    monkeypatch.chdir(tmp_path)
    for number in range(SHARES[kind]):
        one_case(kind, number, tmp_path / f"case-{number}", request)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", SHARES)
def test_many_more_mutated_inputs(kind, tmp_path, monkeypatch, request):
    monkeypatch.chdir(tmp_path)
    for number in range(40 * SHARES[kind]):
        one_case(kind, number, tmp_path / f"case-{number}", request)
