"""Recipes out of settings that other programs save, made by those programs where they are installed."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isogon import Recipe
from isogon.errors import ArgumentError, IsogonError

TIMM = """
aug_repeats: 0
batch_size: 128
epochs: 300
grad_accum_steps: 2
lr: null
lr_base: 0.1
lr_base_scale: ''
lr_base_size: 256
momentum: 0.9
opt: sgd
opt_betas: null
sched: cosine
weight_decay: 2.0e-05
"""
NANOGPT = """
# a configuration, executed by nanoGPT and only read here
out_dir = 'out'
batch_size = 12
block_size = 1024
gradient_accumulation_steps = 5 * 8
learning_rate = 6e-4
max_iters = 600000
weight_decay = 1e-1
beta2 = 0.95
open('/nowhere/harm', 'w')
"""
NANOCHAT = r"""
torchrun --nproc_per_node=8 -m scripts.base_train --matrix-lr 0.02 --weight-decay=0.2 \
    --total-batch-size=524288 --num-iterations 2205  # a note
"""


@pytest.fixture
def write(tmp_path):
    def write(name, text):
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return write


def test_training_arguments_as_transformers_writes_them(write):
    transformers = pytest.importorskip("transformers")
    arguments = transformers.TrainingArguments(
        output_dir="out", learning_rate=3e-4, weight_decay=0.1, adam_beta2=0.95, per_device_train_batch_size=16,
        gradient_accumulation_steps=2, num_train_epochs=4, optim="adamw_torch", use_cpu=True,
    )  # fmt: skip
    file = write("args.json", arguments.to_json_string())
    recipe = Recipe.read(file, devices=4, samples=50_000)
    assert recipe == Recipe(
        optimizer="adamw", lr=3e-4, weight_decay=0.1, momentum=0.9, beta2=0.95, batch_size=128, samples=50_000, epochs=4
    )  # fmt: skip
    assert any("biases and norms" in note for note in recipe.transfer(batch="x2").warnings)
    with pytest.raises(
        ArgumentError, match=r"args.json lacks devices, samples, got .*: give devices=… \(--devices\), sam"
    ):
        Recipe.read(file)
    assert Recipe.read(file, batch_size=64, samples=50_000).batch_size == 64


def test_steps_take_the_place_of_epochs(write):
    values = {"per_device_train_batch_size": 10, "learning_rate": 1e-4, "weight_decay": 0.1, "max_steps": 500}
    recipe = Recipe.read(write("args.json", json.dumps({**values, "optim": "lion_32bit"})), devices=1, samples=1000)
    assert (recipe.optimizer, recipe.epochs) == ("lion", 5)


def test_timms_arguments(write):
    """timm's sgd has Nesterov momentum; its learning rate follows the whole batch."""
    recipe = Recipe.read(write("args.yaml", TIMM), devices=4, samples=1_281_167)
    assert (recipe.optimizer, recipe.batch_size, recipe.epochs, recipe.momentum) == ("nesterov", 1024, 300, 0.9)
    assert recipe.lr == pytest.approx(0.1 * 1024 / 256)
    plain = write("plain.yaml", TIMM.replace("opt: sgd", "opt: momentum"))
    assert Recipe.read(plain, devices=4, samples=1000).optimizer == "sgd"
    adamw = write("adamw.yaml", TIMM.replace("opt: sgd", "opt: adamw"))
    assert Recipe.read(adamw, devices=4, samples=1000).lr == pytest.approx(0.1 * 2)
    given_lr = write("given.yaml", TIMM.replace("lr: null", "lr: 0.3"))
    assert Recipe.read(given_lr, devices=4, samples=1000).lr == 0.3
    with pytest.raises(ArgumentError, match="lacks devices, lr, samples"):
        Recipe.read(write("args.yaml", TIMM))
    with pytest.raises(ArgumentError, match=r"optimizer must be one of .*'lamb'"):
        Recipe.read(write("lamb.yaml", TIMM.replace("opt: sgd", "opt: lamb")), devices=1, samples=10)


def test_a_nanogpt_configuration_is_read_and_not_run(write):
    recipe = Recipe.read(write("train_gpt2.py", NANOGPT), samples=8_823_810)
    assert (recipe.batch_size, recipe.lr, recipe.weight_decay, recipe.beta2) == (480, 6e-4, 0.1, 0.95)
    assert recipe.epochs == pytest.approx(600_000 * 480 / 8_823_810)


def test_nanochats_flags(write):
    recipe = Recipe.read(write("run.sh", NANOCHAT))
    assert (recipe.optimizer, recipe.lr, recipe.weight_decay, recipe.epochs) == ("muon", 0.02, 0.2, 1)
    assert recipe.samples == 524288 * 2205
    # What its script does by default, which halves F.
    assert (recipe.convention, recipe.momentum) == ("cautious", 0.95)
    assert any("rescales by batch and horizon" in note for note in recipe.notes)
    assert Recipe.read(write("run.sh", NANOCHAT), convention="decoupled").tuning_factor == 2 * recipe.tuning_factor
    with pytest.raises(ArgumentError, match="devices must be a whole number"):
        Recipe.read(write("run.sh", NANOCHAT), devices=1.5)


def test_lightnings_hparams(write):
    text = "learning_rate: 0.001\nweight_decay: 0.05\nbatch_size: 64\nmax_epochs: 90\n"
    text += "optimizer:\n  name: AdamW\n  betas: [0.9, 0.95]\n"
    recipe = Recipe.read(write("hparams.yaml", text), samples=50_000, devices=2)
    assert (recipe.optimizer, recipe.batch_size, recipe.beta2, recipe.epochs) == ("adamw", 128, 0.95, 90)
    assert any("taken for all devices" in note for note in Recipe.read(write("hparams.yaml", text), samples=9).notes)
    with pytest.raises(ArgumentError, match=r"unambiguous, got 'lr 0.01 and learning_rate 0.001': say which by lr="):
        Recipe.read(write("hparams.yaml", text + "lr: 0.01\n"), samples=50_000)


def test_our_own_files_are_read_as_before(tmp_path):
    recipe = Recipe(lr=0.1, weight_decay=5e-4, batch_size=128, samples=50_000, epochs=200)
    recipe.save(tmp_path / "recipe.toml")
    assert Recipe.read(tmp_path / "recipe.toml") == Recipe.load(tmp_path / "recipe.toml") == recipe
    assert Recipe.read(tmp_path / "recipe.toml", batch=256).batch_size == 256


@pytest.mark.parametrize(
    ("name", "text", "match"),
    [
        ("training_args.bin", "x", "not a pickle, which could run code"),
        ("args.json", "[1]", "a JSON file that holds an object"),
        ("args.yaml", "a: [", "a YAML file of plain values"),
        ("args.yaml", "!!python/object/apply:os.system ['true']", "a YAML file of plain values"),
        ("args.yaml", "- 1", "a YAML file of names and values"),
        ("config.py", "x = (", "a Python file"),
        ("flags.txt", "", "lacks optimizer, lr, weight_decay, batch_size, samples"),
        ("flags.txt", "--lr 0.1 --optimizer adafactor --wd 1 --batch_size 3 --samples 9", "optimizer must be one of"),
        ("flags.txt", "--lr 0.1 --optimizer adam --wd 1 --batch_size 3 --samples 9", "no universal angle"),
        ("flags.txt", "--lr x --optimizer sgd --wd 1 --batch_size 3 --samples 9", "lacks lr"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_sentence(write, name, text, match):
    with pytest.raises(ArgumentError, match=match) as caught:
        Recipe.read(write(name, text))
    assert "\n" not in str(caught.value)


@given(
    name=st.sampled_from(["a.json", "a.yaml", "a.py", "a.sh", "a.toml"]),
    text=st.text(max_size=60) | st.sampled_from([TIMM, NANOGPT, NANOCHAT, "lr = 1e999", "lr: .nan", "x=" + "(" * 300]),
    cut=st.integers(0, 400),
)
def test_any_file_gives_a_recipe_or_a_sentence(tmp_path_factory, name, text, cut):
    file = tmp_path_factory.mktemp("read") / name
    file.write_text(text[cut:] if cut % 2 else text[:cut], encoding="utf-8", errors="replace")
    known = {"samples": 1000, "lr": 0.1, "weight_decay": 0.1, "optimizer": "adamw", "batch_size": 8}
    with suppress(IsogonError):  # whatever else it raises fails the test
        assert Recipe.read(file, devices=2, **known).samples == 1000
