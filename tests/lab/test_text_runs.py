"""Transformers and text in the lab: every optimizer, groups, clipping, averages; resumed and in lanes."""

from __future__ import annotations

import math

import pytest
import torch

from isogon import Recipe
from isogon.errors import ArgumentError, IsogonError
from isogon.lab import TRAINED, Config, Training, lanes, load, train, try_out
from isogon.search import Study

SMALL = {"depth": 2, "width": 16, "heads": 2}


def text_config(**changes):
    recipe = {"optimizer": "adamw", "lr": 3e-3, "weight_decay": 0.1, "batch_size": 8, "samples": 40, "epochs": 2}
    recipe |= {name: changes.pop(name) for name in [*changes] if name in Recipe.__dataclass_fields__}
    usual = {"net": "gpt", "net_options": SMALL, "data": "python-stdlib?context=16", "schedule": "cosine"}
    return Config(recipe=Recipe(**recipe), **{**usual, "monitor_every": 2, **changes})


def weights_of(run):
    return torch.load(run.folder / "weights.pt", weights_only=True)


def same(first, second):
    return all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("optimizer", TRAINED)
def test_every_optimizer_trains_a_gpt_on_text(optimizer, one_thread):
    rates = {"sgd": 0.3, "nesterov": 0.3, "lion": 2e-3}
    run = train(text_config(optimizer=optimizer, lr=rates.get(optimizer, 3e-3), samples=160, epochs=3), progress=False)
    losses = run.epochs.train_loss.tolist()
    # A guesser has ln 256 = 5.55; each optimizer is well on its way.
    assert losses[0] < 5.56
    assert losses[-1] < losses[0] - 0.2
    assert run.metric == ("loss", "minimize")
    assert run.value == run.test_loss == run.epochs.test_loss.iloc[-1]
    assert run.bits_per_byte == pytest.approx(run.test_loss / math.log(2))
    query = run.records.query("layer == 'blocks.0.attention.q.weight'")
    # The first row is of the peak rate, for which the recipe has the law.
    assert query.predicted_step_angle.iloc[0] == pytest.approx(float(run.config.recipe.motion.angle(1)), rel=1e-6)


def test_losses_and_accuracies_are_per_byte(one_thread):
    """Against a loop without the lab, on the first step."""
    config = text_config(epochs=1, samples=8)
    training = Training(config)
    training.begin_epoch()
    ((x, y),) = list(training.batches())
    with torch.no_grad():
        logits = training.model(x)
    expected = torch.nn.functional.cross_entropy(logits.reshape(-1, 256), y.long().reshape(-1))
    training.backward(x, y)
    loss, right, count = training.sums.tolist()
    assert loss / count == pytest.approx(float(expected), rel=1e-5)
    assert count == 8 * 16
    assert right == int((logits.argmax(-1) == y).sum())


def test_the_network_is_made_for_vocabulary_and_context():
    training = Training(text_config())
    assert training.model.context == 16
    assert training.model.head.weight.shape[0] == 256
    assert set(training.monitor.records.columns) >= {"layer"}
    assert "group:residual" in training.monitor.about["layers"]


OPTIONS = {
    "decay_on": "matrices",
    "clip": 0.5,
    "layer_decay": 0.8,
    "average": 0.9,
}


@pytest.mark.parametrize("optimizer", ["adamw", "lion", "muon"])
def test_a_resumed_run_is_the_same_to_the_bit(optimizer, tmp_path, one_thread):
    config = text_config(optimizer=optimizer, lr=1e-3, epochs=3, **OPTIONS)
    whole = train(config, tmp_path / "whole", progress=False)

    class Stop(Exception):
        pass

    def stop(row):
        if row["epoch"] == 1:
            raise Stop

    with pytest.raises(Stop):
        train(config, tmp_path / "parts", progress=False, report=stop)
    resumed = train(config, tmp_path / "parts", progress=False)
    assert same(weights_of(whole), weights_of(resumed))
    assert whole.epochs.test_loss.tolist() == resumed.epochs.test_loss.tolist()


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_lanes_on_a_cpu_end_as_alone(optimizer, one_thread):
    """In float64 what is computed together differs by rounding alone; Muon's products are in bfloat16."""
    configs = [text_config(optimizer=optimizer, lr=lr, seed=1, precision="float64") for lr in (1e-3, 3e-3)]
    together, alone = lanes(configs, device="cpu"), [train(config, progress=False) for config in configs]
    tolerance = 1e-9 if optimizer == "adamw" else 1e-2
    for first, second in zip(together, alone, strict=True):
        assert first.test_loss == pytest.approx(second.test_loss, rel=tolerance)


def test_groups_are_those_that_people_make():
    training = Training(text_config(decay_on="matrices", layer_decay=0.5))
    names = {id(parameter): name for name, parameter in training.model.named_parameters()}
    settings = {
        names[id(p)]: (group["weight_decay"], group.get("lr_scale", 1.0))
        for group in training.optimizer.param_groups
        for p in group["params"]
    }
    assert len(settings) == len(names)
    # Head, the later block, the earlier one, embedding.
    assert settings["head.weight"] == (0.1, 1.0)
    assert settings["blocks.1.mlp.up.weight"] == (0.1, 0.5)
    assert settings["blocks.0.mlp.up.weight"] == (0.1, 0.25)
    assert settings["embedding.weight"] == (0.0, 0.125)
    rates = {scale: group["lr"] for group in training.optimizer.param_groups for scale in [group.get("lr_scale", 1.0)]}
    assert rates[0.25] == pytest.approx(rates[1.0] / 4)


def test_gradients_are_clipped(one_thread):
    training = Training(text_config(clip=0.01))
    training.begin_epoch()
    training.backward(*next(training.batches()))
    training.step()
    norms = [parameter.grad.norm() for parameter in training.model.parameters()]
    assert float(torch.stack(norms).norm()) == pytest.approx(0.01, rel=1e-4)


def test_the_average_is_tested_and_kept_and_training_continues_without_it(tmp_path, one_thread):
    averaged = train(text_config(average=0.99, epochs=3), tmp_path / "averaged", progress=False)
    plain = train(text_config(epochs=3), tmp_path / "plain", progress=False)
    # The training itself is the same, and what is tested is not.
    assert averaged.epochs.train_loss.tolist() == plain.epochs.train_loss.tolist()
    assert averaged.epochs.test_loss.tolist() != plain.epochs.test_loss.tolist()
    assert not same(weights_of(averaged), weights_of(plain))


def test_the_average_is_its_formula():
    from isogon.lab.run._weight_average import WeightAverage

    model = torch.nn.Linear(1, 1, bias=False).double()
    model.weight.data.fill_(1.0)
    average, expected = WeightAverage(model, 0.5), 1.0
    for step, value in enumerate((2.0, 3.0, 5.0)):
        model.weight.data.fill_(value)
        average.step()
        decay = min(0.5, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * value
    with average.in_place():
        assert model.weight.item() == pytest.approx(expected)
    assert model.weight.item() == 5.0


def test_dropout_of_a_resumed_run_is_that_of_the_whole_one(tmp_path, one_thread):
    config = text_config(net_options={**SMALL, "dropout": 0.2}, epochs=2)
    whole = train(config, tmp_path / "whole", progress=False)
    again = train(config, tmp_path / "again", progress=False)
    assert same(weights_of(whole), weights_of(again))
    without = train(text_config(), tmp_path / "without", progress=False)
    assert not same(weights_of(whole), weights_of(without))


def test_a_vit_on_images(one_thread):
    config = text_config(
        net="vit", net_options={**SMALL, "image_size": 8, "patch": 4}, data="digits", augmentation="none", samples=80,
        epochs=2,
    )  # fmt: skip
    run = train(config, progress=False)
    assert run.metric == ("accuracy", "maximize")
    assert run.value == run.accuracy
    # the stream of a ViT is a group with a law where all is decayed alike
    stream = run.records.query("layer == 'group:residual'")
    assert stream.predicted_step_angle.notna().all()


def test_new_options_change_no_key_that_was_stored(make_config):
    """Runs of 0.1 are found again; each option makes a run of its own."""
    plain = make_config()
    content = {name: value for name, value in plain.to_dict().items() if name not in OPTIONS}
    assert Config.from_dict(content).key == plain.key
    keys = {make_config(**{name: value}).key for name, value in OPTIONS.items()}
    assert len(keys | {plain.key}) == 1 + len(OPTIONS)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"decay_on": "some"}, "decay_on must be one of all, matrices"),
        ({"clip": 0.0}, "clip must be a finite number above 0"),
        ({"layer_decay": 0.0}, "layer_decay must be a finite number above 0 and at most 1"),
        ({"average": 1.0}, "average must be a finite number at least 0 and below 1"),
        ({"augmentation": "flip"}, "augmentation must be none for text"),
        ({"data": "text:"}, "name must be python-stdlib"),
        ({"schedule": "texp_step", "optimizer": "sgd", "decay_on": "matrices"}, "schedule must be"),
        (
            {"schedule": "exp(constant)", "optimizer": "sgd", "average": 0.9},
            "where clip or average is set",
        ),
        ({"schedule": "exp(constant)", "optimizer": "sgd", "clip": 1.0}, "where clip or average is set"),
    ],
)
def test_bad_options_are_refused(changes, match):
    with pytest.raises(ArgumentError, match=match):
        try_out(text_config(**changes))


def test_muon_of_a_network_without_hidden_matrices_is_refused(make_config):
    with pytest.raises(ArgumentError, match="optimizer must be another one for a network without hidden matrices"):
        Training(make_config(optimizer="muon", monitor_every=0))


def test_a_network_for_images_does_not_take_text():
    with pytest.raises(IsogonError, match="net cnn4 does not take the text of python-stdlib"):
        try_out(text_config(net="cnn4", net_options={"width": 4}))


def test_a_study_of_text_minimizes_the_loss():
    recipe = {"optimizer": "adamw", "lr": 3e-3, "weight_decay": "?", "batch_size": 8, "samples": 640, "epochs": 2}
    task = {"net": "gpt", "net_options": SMALL, "data": "python-stdlib?context=16"}
    study = Study.from_tables({"recipe": recipe, "task": task})
    assert (study.task.metric, study.task.direction) == ("loss", "minimize")
    assert study.config(tuning_factor=0.1, samples=40, seed=0).augmentation == "none"
    other = Study.from_tables({"recipe": recipe, "task": {**task, "metric": "accuracy"}})
    assert other.task.direction == "maximize"


def test_data_for_text_and_images_differ_in_what_they_count():
    assert load("digits").labels_per_sample == 1
    assert not load("digits").is_text
