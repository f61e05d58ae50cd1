"""`Config`: the protocol by default, a file and back, and one clear sentence for what is wrong."""

from __future__ import annotations

import json
import pickle
from dataclasses import FrozenInstanceError, fields, replace

import numpy as np
import pytest
import torch

from isogon import Recipe, check
from isogon.errors import ArgumentError
from isogon.lab import Config, train
from isogon.lab.run._augment import PadCropFlip, find_augmentation
from isogon.lab.run._networks import build
from isogon.nets import GhostBatchNorm2d

RECIPE = Recipe(lr=0.1, weight_decay=5e-4, batch_size=128, samples=50_000)


def test_the_defaults_are_yuns_protocol(make_config):
    config = Config(recipe=RECIPE)
    assert (config.epochs, config.steps_per_epoch, config.steps) == (300, 390, 117_000)
    assert (config.net, config.data, config.schedule) == ("resnet18", "cifar10", "step")
    assert isinstance(find_augmentation(config.augmentation), PadCropFlip)
    assert not config.replacement
    assert config.last_batch == "drop"
    # The network that these options make, narrow so that it is made in no time.
    small = make_config(net="resnet18", options={**config.net_options, "width": 4})
    assert {name: small.net_options[name] for name in config.net_options} == dict(config.net_options)
    model = build(small, _Images())
    norms = [module for module in model.modules() if isinstance(module, torch.nn.BatchNorm2d | GhostBatchNorm2d)]
    assert norms
    assert all(isinstance(norm, GhostBatchNorm2d) and norm.ghost_batch == 64 for norm in norms)
    assert not any(parameter.requires_grad for parameter in model.head.parameters())
    assert any(parameter.requires_grad and parameter.dim() == 1 for parameter in model.parameters())  # γ and β
    assert check(model, torch.randn(4, 3, 8, 8)).is_invariant


class _Images:
    """What `build` asks of a data set."""

    num_classes, in_channels = 10, 3


# A value other than the default for every field but the recipe.
OTHERS = {
    "net": "cnn4",
    "net_options": {"width": 4},
    "data": "digits",
    "data_root": "elsewhere",
    "augmentation": "none",
    "schedule": "cosine",
    "seed": 1,
    "init_seed": 0,
    "subset_seed": 1,
    "initialisation": "kaiming",
    "precision": "float64",
    "decay_on": "matrices",
    "clip": 1.0,
    "layer_decay": 0.75,
    "average": 0.999,
    "replacement": True,
    "last_batch": "keep",
    "micro_batch": 64,
    "monitor_every": 0,
    "test_every": 5,
    "snapshot_every": 2,
    "turns": {"conv.weight": [1, 4]},
    "save_predictions": True,
    "save_weights": False,
}


def test_a_file_and_back():
    assert set(OTHERS) == {field.name for field in fields(Config)} - {"recipe"}
    for config in (Config(recipe=RECIPE), Config(recipe=RECIPE, **OTHERS)):
        text = json.dumps(config.to_dict())
        for copy in (Config.from_dict(json.loads(text)), pickle.loads(pickle.dumps(config))):
            assert copy == config
            assert copy.key == config.key
            assert hash(copy) == hash(config)
            assert copy.to_dict() == config.to_dict()


def test_the_key_changes_with_all_that_decides_the_result_and_with_nothing_else():
    config = Config(recipe=RECIPE)
    keys = {name: replace(config, **{name: value}).key for name, value in OTHERS.items()}
    assert keys.pop("data_root") == config.key
    recipes = {
        "optimizer": "nesterov",
        "lr": 0.2,
        "weight_decay": 0.0,
        "momentum": 0.8,
        "batch_size": 64,
        "samples": 5000,
        "epochs": 30,
    }
    keys |= {name: Config(recipe=replace(RECIPE, **{name: value})).key for name, value in recipes.items()}
    assert len({config.key, *keys.values()}) == len(keys) + 1

    options = {"width": 4, "norm": "batch"}
    backwards = dict(reversed(options.items()))
    assert replace(config, net_options=options).key == replace(config, net_options=backwards).key
    assert replace(config, seed=1).key == replace(config, seed=1.0).key == replace(config, seed=np.int64(1)).key
    assert len({config.name, replace(config, precision="float64").name}) == 2
    assert "/" not in replace(config, data="npz:a/b.npz", net="package.module:function").name


def test_nothing_changes_behind_its_back():
    options = {"width": 4, "kinds": [1, 2]}
    config = Config(recipe=RECIPE, net_options=options)
    key = config.key
    options["width"] = 8
    options["kinds"].append(3)
    with pytest.raises(FrozenInstanceError):
        config.seed = 2
    with pytest.raises(TypeError):
        config.net_options["width"] = 8
    assert config.key == key
    assert config.net_options == {"width": 4, "kinds": [1, 2]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"recipe": {"lr": 0.1}}, "recipe must be an isogon.Recipe"),
        ({"recipe": replace(RECIPE, epochs=2.5)}, "recipe.epochs must be a whole number"),
        ({"recipe": replace(RECIPE, samples=100)}, "batch_size must be at most the 100 samples"),
        ({"precision": "float16"}, "precision must be one of float32, bfloat16, float64, got 'float16'"),
        ({"last_batch": "pad"}, "last_batch must be one of drop, keep"),
        ({"initialisation": "xavier"}, "initialisation must be one of default, kaiming"),
        ({"seed": -1}, "seed must be a whole number"),
        ({"seed": "1"}, "seed must be a whole number"),
        ({"seed": None}, "seed must be a whole number"),
        ({"init_seed": 0.5}, "init_seed must be a whole number"),
        ({"subset_seed": -1}, "subset_seed must be a whole number"),
        ({"monitor_every": -1}, "monitor_every must be a whole number"),
        ({"micro_batch": 129}, "micro_batch must be from 1 to the batch size 128, got 129"),
        ({"micro_batch": 0}, "micro_batch must be from 1"),
        ({"replacement": "no"}, "replacement must be True or False, got 'no'"),
        ({"net": 3}, "net must be a name"),
        ({"data_root": 5}, "data_root must be a folder's path, got 5"),
        ({"data_root": "a\0b"}, "data_root must be a folder's path"),
        ({"recipe": replace(RECIPE, lr=1e308)}, "recipe.lr must be a finite number at most 3e+38"),
        ({"schedule": "warmup:1(" * 500}, "schedule must be constant, step, cosine"),
        ({"schedule": "stairs"}, "schedule must be constant, step, cosine"),
        ({"schedule": "exp(cosine)"}, "schedule must be constant for exp_lr"),
        ({"augmentation": "mixup"}, "augmentation must be"),
        ({"net_options": {"norm": torch.nn.BatchNorm2d}}, "net_options must be a mapping that fits in a JSON file"),
        ({"net_options": 3}, "net_options must be a mapping"),
        ({"turns": 4}, "turns must be a mapping"),
        ({"turns": {"conv.weight": 4}}, "turns['conv.weight'] must be a list of numbers of steps, got 4"),
        ({"turns": {"conv.weight": [4, 0]}}, "turns['conv.weight'] must be a whole number"),
        ({"turns": {"conv.weight": [True]}}, "turns['conv.weight'] must be a whole number"),
    ],
)
def test_a_bad_value_is_refused_in_a_sentence(change, message):
    with pytest.raises(ArgumentError, match="must be") as refusal:
        Config(**{"recipe": RECIPE, **change})
    sentence = str(refusal.value)
    assert message in sentence
    assert "\n" not in sentence
    assert sentence.endswith(".")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "config must be a mapping of the fields"),
        ({"seed": 1}, "config must be a mapping with a recipe"),
        ({"recipe": {"lr": 0.1}}, "recipe must be the fields of a Recipe"),
        ({"recipe": RECIPE.to_dict(), "sed": 1}, "config must be made of the fields of lab.Config, got 'sed'"),
    ],
)
def test_a_bad_file_is_refused_in_a_sentence(content, message):
    with pytest.raises(ArgumentError, match=message):
        Config.from_dict(content)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"net": "resnet19"}, "net must be a function of isogon.nets (cnn4, .*resnet18"),
        ({"net": "isogon.nets:__all__"}, "net must be .* it is no function"),
        ({"net": "nowhere.at_all:net"}, "net must be .* No module named 'nowhere'"),
        ({"net": "isogon.nets:nothing"}, "net must be .* no attribute 'nothing'"),
        ({"options": {"depth": 3}}, "net_options must be arguments of cnn4, .*unexpected keyword argument 'depth'"),
        ({"options": {"width": 0}}, "width must be"),
        ({"samples": 100_000, "batch_size": 100}, "subset must be at most the 1438 training samples of digits"),
        ({"data": "didgits"}, "name must be one of"),
    ],
)
def test_what_only_training_can_tell_is_refused_in_a_sentence_too(make_config, change, message):
    with pytest.raises(ArgumentError, match=message.replace("(", r"\(")):
        train(make_config(**change), device="cpu")
