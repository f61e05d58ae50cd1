"""`train`: the same weights as a plain loop, and what a run reports about itself."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.nn.functional import batch_norm, conv2d, cross_entropy, linear

from isogon.dynamics import read
from isogon.errors import ArgumentError, IsogonError
from isogon.lab import Run, load, train
from isogon.lab.run._batch_order import epoch_of
from isogon.lab.run._distributed import Ranks
from isogon.lab.run._divergence import patience
from isogon.lab.run._evaluation import evaluate, predict_classes
from isogon.lab.run._k_step_angles import column_of
from isogon.lab.run._networks import build
from isogon.lab.run._training import Training

OWN_NET = """
from torch import nn
from torch.nn.functional import dropout

class Dropping(nn.Module):
    def forward(self, x):
        return dropout(x, 0.3, self.training)

def network(num_classes, in_channels, width=4, dropping=None, eps=1e-5):
    drop = {"module": [nn.Dropout(0.3)], "function": [Dropping()], None: []}[dropping]
    first = [nn.Conv2d(in_channels, width, 3, bias=False), nn.BatchNorm2d(width, eps), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*first, *drop, nn.Linear(36 * width, num_classes))
"""


@pytest.fixture
def own_net(tmp_path, monkeypatch, make_config):
    """Configs of a user's own network."""
    (tmp_path / "some_users_module.py").write_text(OWN_NET)
    monkeypatch.syspath_prepend(tmp_path)

    def make(**changes):
        options = changes.pop("options", {})
        config = make_config(net="some_users_module:network", **changes).to_dict()
        return make_config().from_dict({**config, "net_options": options})

    return make


def trained(config, folder):
    """The run in `folder` and its weights."""
    run = train(config, folder, device="cpu")
    return run, torch.load(folder / "weights.pt", weights_only=True)


def plain_loop(config, update):
    """The weights after training by hand, in float64; `update(weight, gradient, memory, lr)` is the optimizer."""
    data = load(config.data, subset=config.recipe.samples)
    start = build(config, data).double().state_dict()
    names = ("0.weight", "1.weight", "1.bias", "4.weight", "4.bias")
    weights = {name: start[name].clone().requires_grad_() for name in names}
    memory = {name: {} for name in weights}
    step = 0
    for epoch in range(config.epochs):
        for places, _ in epoch_of(config, epoch).batches():
            pixels = data.train_x[places].double() / 255
            x = (pixels - data.mean[0]) / data.std[0]
            hidden = batch_norm(
                conv2d(x, weights["0.weight"]), None, None, weights["1.weight"], weights["1.bias"], training=True
            )
            outputs = linear(hidden.relu().flatten(1), weights["4.weight"], weights["4.bias"])
            gradients = torch.autograd.grad(cross_entropy(outputs, data.train_y[places]), list(weights.values()))
            lr = config.recipe.lr * (1 if step < config.steps / 2 else 0.1 if step < config.steps * 3 / 4 else 0.01)
            with torch.no_grad():
                for (name, weight), gradient in zip(weights.items(), gradients, strict=True):
                    update(weight, gradient, memory[name], lr)
            step += 1
    return {name: weight.detach() for name, weight in weights.items()}


def sgd(weight, gradient, memory, lr, nesterov=False):
    gradient = gradient + 5e-3 * weight
    memory["v"] = velocity = 0.9 * memory.get("v", 0) + gradient
    weight -= lr * (gradient + 0.9 * velocity if nesterov else velocity)


def nesterov(weight, gradient, memory, lr):
    sgd(weight, gradient, memory, lr, nesterov=True)


def adamw(weight, gradient, memory, lr):
    memory["t"] = t = memory.get("t", 0) + 1
    memory["m"] = m = 0.9 * memory.get("m", 0) + 0.1 * gradient
    memory["v"] = v = 0.95 * memory.get("v", 0) + 0.05 * gradient**2
    weight *= 1 - lr * 5e-3
    weight -= lr * m / (1 - 0.9**t) / ((v / (1 - 0.95**t)).sqrt() + 1e-8)


@pytest.mark.parametrize(
    ("update", "recipe"),
    [
        (sgd, {"optimizer": "sgd"}),
        (nesterov, {"optimizer": "nesterov"}),
        (adamw, {"optimizer": "adamw", "beta2": 0.95, "lr": 0.01}),
    ],
)
def test_the_weights_are_those_of_a_plain_loop(own_net, tmp_path, update, recipe):
    config = own_net(epochs=2, precision="float64", batch_size=60, last_batch="keep", **recipe)
    _, weights = trained(config, tmp_path / "run")
    for name, expected in plain_loop(config, update).items():
        torch.testing.assert_close(weights[name], expected, rtol=0, atol=1e-12)


def test_micro_batches_are_ghost_batches(make_config, tmp_path):
    """Full-batch gradient descent in parts of 25 has the statistics of ghost batches of 25 in one batch."""
    common = {"precision": "float64", "batch_size": 200, "epochs": 4, "lr": 0.5}
    _, whole = trained(make_config(**common), tmp_path / "whole")
    _, parts = trained(make_config(**common, micro_batch=25, options={"norm": "batch"}), tmp_path / "parts")
    _, other = trained(make_config(**common, micro_batch=50, options={"norm": "batch"}), tmp_path / "other")
    names = [name for name in whole if name.endswith("weight")]
    for name in names:
        torch.testing.assert_close(parts[name], whole[name], rtol=0, atol=1e-12)
    assert max((other[name] - whole[name]).abs().max() for name in names) > 1e-3


def angle(first, second):
    cosine = torch.nn.functional.cosine_similarity(first.flatten(), second.flatten(), dim=0)
    return math.acos(min(1.0, cosine.item()))


@pytest.mark.parametrize(
    ("ordinary", "exponential"),
    [("constant", "exp(constant)"), ("step", "texp(step)"), ("cosine", "texp_plus(cosine)")],
)
def test_an_exponential_schedule_turns_the_weights_as_weight_decay_does(own_net, tmp_path, ordinary, exponential):
    """The norm's ε is no part of the equivalence, so it is next to nothing here: what is left is rounding.

    Weight decay itself makes a difference of a tenth, without which this would say nothing.
    """
    common = {"precision": "float64", "weight_decay": 0.02, "epochs": 10, "options": {"eps": 1e-30}}
    run, weights = trained(own_net(**common, schedule=ordinary), tmp_path / "ordinary")
    run_exp, weights_exp = trained(own_net(**common, schedule=exponential), tmp_path / "exponential")
    _, without = trained(own_net(**{**common, "weight_decay": 0}, schedule=ordinary), tmp_path / "without")
    invariant, others = "0.weight", ("1.weight", "1.bias", "4.weight", "4.bias")
    assert angle(weights[invariant], without[invariant]) > 0.05
    assert angle(weights[invariant], weights_exp[invariant]) < 1e-6
    # The driver halves the weights whenever they have doubled.
    assert 1.01 < weights_exp[invariant].norm() / weights[invariant].norm() < 2
    for name in others:
        torch.testing.assert_close(weights_exp[name], weights[name], rtol=1e-9, atol=1e-9)
    assert run_exp.accuracy == run.accuracy


def test_bfloat16_learns_and_keeps_float32_weights(make_config, tmp_path):
    run, weights = trained(make_config(precision="bfloat16", epochs=6), tmp_path / "run")
    assert run.status == "finished"
    assert np.isfinite(run.epochs.to_numpy(dtype=float)).all()
    assert all(value.dtype != torch.bfloat16 and value.isfinite().all() for value in weights.values())
    plain, _ = trained(make_config(epochs=6), tmp_path / "plain")
    assert run.epochs.train_loss.tolist() != plain.epochs.train_loss.tolist()
    assert run.accuracy == pytest.approx(plain.accuracy, abs=0.1)
    assert run.accuracy > 0.3


def test_what_a_run_says_of_itself(own_net, tmp_path):
    config = own_net(save_predictions=True, batch_size=60)
    rows = []
    run = train(config, tmp_path / "run", device="cpu", report=rows.append)
    weights = torch.load(tmp_path / "run" / "weights.pt", weights_only=True)
    data = load("digits", subset=200)
    model = build(config, data)
    model.load_state_dict(weights)
    with torch.no_grad():
        outputs = model.eval()(((data.test_x / 255) - data.mean[0]) / data.std[0])
    by_hand = (outputs.argmax(1) == data.test_y).double().mean().item()
    assert run.accuracy == by_hand == run.epochs.test_accuracy.iloc[-1]
    assert run.best_accuracy == run.epochs.test_accuracy.max()
    assert run.epochs.test_loss.iloc[-1] == pytest.approx(cross_entropy(outputs, data.test_y).item(), rel=1e-5)
    assert run.predictions.tolist() == outputs.argmax(1).tolist()
    assert run.predictions.dtype == np.int16
    assert run.epochs.epoch.tolist() == [0, 1, 2]
    assert run.epochs.step.tolist() == [2, 5, 8]
    assert (run.epochs.images_per_second > 0).all()
    assert run.epochs.train_loss.is_monotonic_decreasing
    assert run.images == 3 * 180
    assert rows == run.epochs.to_dict("records")
    assert set(run.records.epoch) == {0, 1, 2}
    assert {2, 5, 8} <= set(run.records.step)  # the last of each epoch
    # Read back, it is the same, and is not trained again.
    again = train(config, tmp_path / "run", report=lambda row: pytest.fail("trained again"))
    for other in (again, Run.read(tmp_path / "run")):
        assert other.config == config
        pd.testing.assert_frame_equal(other.epochs, run.epochs)
        assert (other.accuracy, other.status, other.images) == (run.accuracy, "finished", run.images)
        assert other.data_fingerprint == run.data_fingerprint == data.fingerprint
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["accuracy"] == run.accuracy
    assert not (tmp_path / "run" / "checkpoint.pt").exists()


def test_without_a_folder_or_a_monitor(make_config, tmp_path):
    """The monitor watches and changes nothing; nothing is written without a folder."""
    watched = train(make_config(), device="cpu")
    pd.testing.assert_frame_equal(watched.records, train(make_config(), tmp_path / "run", device="cpu").records)
    plain = train(make_config(monitor_every=0, save_weights=False), tmp_path / "plain", device="cpu")
    clock = ["images_per_second"]
    pd.testing.assert_frame_equal(plain.epochs.drop(columns=clock), watched.epochs.drop(columns=clock))
    pd.testing.assert_frame_equal(Run.read(tmp_path / "plain").epochs, plain.epochs)
    assert not (tmp_path / "plain" / "weights.pt").exists()
    with pytest.raises(IsogonError, match="no records: train it with monitor_every"):
        _ = plain.records
    with pytest.raises(IsogonError, match="no predictions: train it with save_predictions"):
        _ = plain.predictions
    with pytest.raises(ArgumentError, match="folder must be a run that has ended"):
        Run.read(tmp_path)


def test_seeds_have_their_own_parts(make_config):
    """`init_seed` decides the first weights, `seed` the batches."""
    data = load("digits", subset=200)

    def first(**seeds):
        return build(make_config(**seeds), data)[0][0].weight

    assert torch.equal(first(seed=1), first(seed=5, init_seed=1))
    assert not torch.equal(first(seed=1), first(seed=2))
    losses = [train(make_config(epochs=1, **seeds), device="cpu").epochs.train_loss[0] for seeds in _SEEDS]
    assert losses[0] == losses[1]
    assert len(set(losses)) == 4


_SEEDS = (
    {"seed": 1},
    {"seed": 1, "init_seed": 1},
    {"seed": 2, "init_seed": 1},
    {"seed": 1, "init_seed": 2},
    {"seed": 1, "subset_seed": 1},
)


@pytest.mark.parametrize("dropping", ["module", "function"])
def test_dropout_is_the_same_after_a_stop(own_net, tmp_path, dropping):
    config = own_net(epochs=4, options={"dropping": dropping})
    before = torch.get_rng_state()
    _, whole = trained(config, tmp_path / "whole")
    assert torch.equal(before, torch.get_rng_state())  # the program's own generator is left alone
    _, without = trained(own_net(epochs=4), tmp_path / "without")
    assert not torch.equal(whole["0.weight"], without["0.weight"])

    def stop(row):
        if row["epoch"] == 1:
            raise KeyboardInterrupt

    # The interrupt is kept, as a notebook keeps it, with all that its frames hold.
    with pytest.raises(KeyboardInterrupt) as saved:
        train(config, tmp_path / "parts", device="cpu", report=stop)
    torch.manual_seed(11)
    _, parts = trained(config, tmp_path / "parts")
    del saved
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


def test_a_run_that_overflows_ends_as_diverged(make_config, tmp_path):
    config = make_config(lr=1e38, epochs=8)
    run = train(config, tmp_path / "run", device="cpu")
    assert run.status == "diverged"
    assert 1 <= len(run.epochs) < 8
    assert not math.isfinite(run.epochs.train_loss.iloc[-1])
    assert math.isnan(run.accuracy)
    assert math.isnan(run.best_accuracy)
    assert len(run.records) > 0
    assert json.loads((tmp_path / "run" / "result.json").read_text())["accuracy"] is None
    again = train(config, tmp_path / "run", report=lambda row: pytest.fail("trained again"))
    assert again.status == "diverged"
    pd.testing.assert_frame_equal(again.epochs, run.epochs)


def test_a_run_that_learns_nothing_ends_after_some_patience(make_config):
    stuck = train(make_config(lr=1e-12, epochs=60, monitor_every=0), device="cpu")
    assert stuck.status == "diverged"
    assert len(stuck.epochs) == patience(60) == 6
    good = train(make_config(epochs=8, monitor_every=0), device="cpu")
    assert good.status == "finished"
    assert len(good.epochs) == 8


def test_an_exponential_schedule_needs_to_know_the_symmetry(make_config, tmp_path, monkeypatch):
    (tmp_path / "another_users_module.py").write_text(
        "from isogon import nets\n"
        "class Unforeseen(nets.cnn4().__class__):\n"
        "    def forward(self, x):\n"
        "        return super().forward(x) if float(x.sum()) < 1e9 else x\n"
        "def network(num_classes, in_channels, **options):\n"
        "    return Unforeseen(*nets.cnn4(num_classes, in_channels, **options))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    net = "another_users_module:network"
    assert train(make_config(net=net, epochs=1), device="cpu").status == "finished"
    with pytest.raises(ArgumentError, match="schedule must be ordinary for a network of which"):
        train(make_config(net=net, schedule="texp(step)"), device="cpu")


def test_evaluation_takes_any_number_of_images():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(4), nn.Linear(4, 3)).train()
    images, labels = torch.randn(1203, 1, 2, 2), torch.randint(0, 3, (1203,))
    model(images[:50])
    loss, accuracy = evaluate(model, images, labels, lambda x: 2 * x, Ranks())
    assert all(module.training for module in model.modules())
    with torch.no_grad():
        outputs = model.eval()(2 * images).double()
    assert loss == pytest.approx(cross_entropy(outputs, labels).item(), rel=1e-6)
    assert accuracy == (outputs.argmax(1) == labels).double().mean().item()
    assert torch.equal(predict_classes(model, images, lambda x: 2 * x), outputs.argmax(1))


def test_epochs_that_are_not_tested(make_config, tmp_path):
    every, half, last = (
        train(make_config(epochs=5, test_every=count), tmp_path / str(count), device="cpu", progress=False)
        for count in (1, 2, 0)
    )
    np.testing.assert_array_equal(half.epochs.test_accuracy.notna(), [False, True, False, True, True])
    np.testing.assert_array_equal(last.epochs.test_accuracy.notna(), [False, False, False, False, True])
    tested = half.epochs.test_accuracy.notna()
    pd.testing.assert_frame_equal(half.epochs[tested].iloc[:, :-1], every.epochs[tested].iloc[:, :-1])
    assert half.accuracy == last.accuracy == every.accuracy
    assert half.best_accuracy == every.epochs.test_accuracy[tested].max()


def test_checkpoints_no_sooner_than_some_seconds_keep_records_whole(make_config, tmp_path):
    """A training that dies between two checkpoints is gone on with from the last one, and its records have no gap."""
    config = make_config(epochs=4, monitor_every=1)
    whole = train(config, tmp_path / "whole", device="cpu", progress=False)
    (tmp_path / "parts").mkdir()
    training = Training(config, tmp_path / "parts", checkpoint_seconds=1e9)
    for epoch in range(3):
        training.begin_epoch()
        for batch in training.batches():
            training.backward(*batch)
            training.step()
        if epoch == 1:
            training._checkpoint_seconds = 0.0
        training.end_epoch()
        training._checkpoint_seconds = 1e9
    training.close()  # dies here, in its third epoch
    assert set(read(tmp_path / "parts").epoch) == {0, 1}
    again = train(config, tmp_path / "parts", device="cpu", progress=False)
    pd.testing.assert_frame_equal(again.records, whole.records)
    pd.testing.assert_frame_equal(again.epochs.iloc[:, :-1], whole.epochs.iloc[:, :-1])


def test_turns_are_the_angles_between_the_weights(make_config, tmp_path):
    layer = "body.1.conv.weight"
    config = make_config(epochs=2, monitor_every=1, precision="float64")
    steps = config.steps_per_epoch
    turns = {layer: [1, steps, steps + 1], "stem.conv.weight": [steps]}
    run = train(replace(config, turns=turns), tmp_path / "run", device="cpu")
    # The monitor knows the angles of steps and of epochs as well.
    for name in turns:
        records = run.records[run.records["layer"] == name]
        epochs = records[records["epoch_angle"].notna()]["epoch_angle"]
        np.testing.assert_allclose(run.epochs[column_of(name, steps)], epochs, rtol=1e-9)
    squares = (run.records[run.records["layer"] == layer].set_index("epoch")["step_angle"] ** 2).groupby("epoch").mean()
    np.testing.assert_allclose(run.epochs[column_of(layer, 1)], np.sqrt(squares), rtol=1e-9)
    assert run.epochs[column_of(layer, steps + 1)].isna().all()
    pd.testing.assert_frame_equal(Run.read(tmp_path / "run").epochs, run.epochs)
    with pytest.raises(
        ArgumentError, match=r"turns must be weights of the network by name, got 'conv9'.*for example stem"
    ):
        train(replace(config, turns={"conv9": [1]}), device="cpu")


def test_snapshots_are_the_weights_on_the_way(make_config, tmp_path):
    """Those after three epochs are where a run stands that is stopped there; the schedule is the same."""
    run = train(make_config(epochs=6, snapshot_every=3, schedule="constant"), tmp_path / "whole", device="cpu")
    _, short = trained(make_config(epochs=3, schedule="constant"), tmp_path / "short")
    assert list(run.snapshots) == [3, 6]
    for epoch, weights in ((3, short), (6, torch.load(tmp_path / "whole" / "weights.pt", weights_only=True))):
        saved = torch.load(run.snapshots[epoch], weights_only=True)
        assert all(torch.equal(saved[name], value) for name, value in weights.items())
    with pytest.raises(IsogonError, match="no snapshots"):
        _ = train(make_config(epochs=1), device="cpu").snapshots


def test_rates_and_norms_go_together_where_an_epoch_ends_with_a_rebase(make_config):
    """An exponential schedule halves weights that have doubled, here every 35 steps; some of those end an epoch."""
    options = {"schedule": "exp(constant)", "lr": 0.1, "weight_decay": 0.02, "epochs": 120, "monitor_every": 4}
    run = train(make_config(**options), device="cpu")
    joint = run.records.query("layer == 'all'").set_index("step")
    rates = joint.effective_lr[joint.epoch_angle.notna()]
    assert len(rates) == 120
    steps = np.abs(np.log(rates.to_numpy()[1:] / rates.to_numpy()[:-1]))
    # A norm that was halved beside a rate that was not yet quartered would be a jump by 4 there and back.
    assert steps[5:].max() < np.log(2.5), rates


def test_runs_of_a_few_steps_train(make_config):
    for schedule in ("step", "texp(step)"):
        for epochs, samples in ((1, 50), (1, 100), (3, 50)):
            config = make_config(epochs=epochs, samples=samples, schedule=schedule)
            assert train(config, device="cpu").status == "finished"
