"""Predicted curves against simulated noise, and against the law in equilibrium."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from isogon import Recipe, predict, schedules
from isogon.errors import ArgumentError

OPTIMIZERS = ["sgd", "nesterov", "adamw", "lion", "muon"]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_in_equilibrium_the_curves_are_the_law(optimizer):
    recipe = Recipe(optimizer=optimizer, lr=0.05, weight_decay=2e-3, batch_size=100, samples=10_000, epochs=5)
    run = predict.curves(recipe)
    np.testing.assert_allclose(run.norm, 1.0)
    np.testing.assert_allclose(run.step_angle[1:], recipe.motion.angle(1))
    np.testing.assert_allclose(run.epoch_angle[1:], recipe.motion.angle(100))
    np.testing.assert_allclose(run.settled, 1.0)
    assert np.isnan(run.step_angle[0])


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_start_ends_in_the_same_equilibrium(optimizer):
    recipe = Recipe(optimizer=optimizer, lr=0.05, weight_decay=2e-3, batch_size=100, samples=100_000, epochs=90)
    for norm in (0.01, 0.5, 30.0):
        run = predict.curves(recipe, initial_norm=norm)
        assert run.norm[0] == pytest.approx(norm)
        assert run.norm[-1] == pytest.approx(1.0, rel=1e-3)
        assert run.epoch_angle[-1] == pytest.approx(recipe.motion.angle(1000), rel=1e-3)
        assert np.all(run.epoch_angle[1:] <= np.pi / 2 + 1e-9)


def simulate(recipe, schedule, initial_norm, paths=8, dim=1500, seed=0):
    """Heavy-ball SGD on scale-invariant noise with E‖g̃‖² = 1: norm and angles at the ends of the epochs."""
    rng = np.random.default_rng(seed)
    w = rng.standard_normal((paths, dim))
    w *= initial_norm / np.linalg.norm(w, axis=1, keepdims=True)
    v, per_epoch = np.zeros_like(w), int(recipe.steps_per_epoch)
    norms, step_angles, epoch_angles, last = [initial_norm], [], [], w / initial_norm
    for step in range(per_epoch * recipe.epochs):
        size = np.linalg.norm(w, axis=1, keepdims=True)
        unit = w / size
        noise = rng.standard_normal(w.shape) / np.sqrt(dim - 1)
        noise -= np.sum(noise * unit, axis=1, keepdims=True) * unit
        v = recipe.momentum * v + noise / size + schedule.weight_decay(step) * w
        w = w - schedule.lr(step) * v
        now = w / np.linalg.norm(w, axis=1, keepdims=True)
        if (step + 1) % per_epoch == 0:
            norms.append(np.mean(np.linalg.norm(w, axis=1)))
            step_angles.append(np.sqrt(np.mean(np.sum((now - unit) ** 2, axis=1))))
            epoch_angles.append(np.arccos(np.mean(np.sum(now * last, axis=1))))
            last = now
    return np.array(norms), np.array(step_angles), np.array(epoch_angles)


@pytest.mark.parametrize("kind", ["step", "cosine", "no decay"])
def test_a_whole_run_is_as_simulated(kind):
    recipe = Recipe(lr=0.1, weight_decay=0.01, momentum=0.8, batch_size=1, samples=100, epochs=14)
    schedule = {
        "step": schedules.step_decay(0.1, 0.01, [600, 1000], 4),
        "cosine": schedules.cosine(0.1, 0.01, 1600),
        "no decay": schedules.constant(0.1, 0.0),
    }[kind]
    start = 1.5
    run = predict.curves(recipe, schedule, initial_norm=start, unit_grad_sq=1.0)
    norms, step_angles, epoch_angles = simulate(recipe, schedule, start)
    np.testing.assert_allclose(run.norm, norms, rtol=0.01)
    np.testing.assert_allclose(run.step_angle[1:], step_angles, rtol=0.06)
    # an epoch angle that spans a change of the rates is the hardest: the law knows no such epochs
    np.testing.assert_allclose(run.epoch_angle[1:], epoch_angles, rtol=0.06)


def test_effective_rates_are_by_definition():
    recipe = Recipe(lr=0.1, weight_decay=1e-3, batch_size=64, samples=6400, epochs=3)
    run = predict.curves(recipe, initial_norm=2.0, unit_grad_sq=3.0)
    np.testing.assert_allclose(run.effective_lr, run.lr / run.norm**2)
    np.testing.assert_allclose(run.effective_lr_epoch, run.effective_lr * 100)


def test_fractional_epochs_and_steps():
    recipe = Recipe(lr=0.1, weight_decay=1e-3, batch_size=128, samples=1000, epochs=2.5)
    run = predict.curves(recipe)
    assert run.step.tolist() == [0, 8, 16, 20]
    tiny = Recipe(lr=0.1, weight_decay=1e-3, batch_size=128, samples=10, epochs=1)
    assert predict.curves(tiny).step.tolist() == [0, 1]


def test_the_table_has_a_row_an_epoch():
    recipe = Recipe(lr=0.1, weight_decay=1e-3, batch_size=10, samples=100, epochs=4)
    frame = predict.curves(recipe).to_frame()
    assert len(frame) == 5
    assert {"epoch", "step", "lr", "norm", "step_angle", "epoch_angle", "effective_lr"} <= set(frame.columns)


@pytest.mark.parametrize(
    ("fields", "arguments", "match"),
    [
        ({"epochs": None}, {}, "epochs must be set"),
        ({"weight_decay": 0}, {"initial_norm": 1}, "unit_grad_sq must be given without weight decay"),
        ({"weight_decay": 0}, {"unit_grad_sq": 1}, "initial_norm must be given without weight decay"),
        ({}, {"initial_norm": -1}, "initial_norm must be"),
        ({"epochs": 10**9}, {}, "epochs must be a finite number at most 10000"),
        ({"samples": 10**12, "epochs": 100}, {}, "predict fewer steps"),
        ({}, {"initial_norm": 1e100}, "initial_norm must be"),
        ({"lr": 1e200, "weight_decay": 1e-203}, {"initial_norm": 1.0}, "range of floating point"),
    ],
)
def test_bad_input_is_named(fields, arguments, match):
    recipe = Recipe(**{"lr": 0.1, "weight_decay": 1e-3, "batch_size": 1, "samples": 10, "epochs": 2, **fields})
    with pytest.raises(ArgumentError, match=match):
        predict.curves(recipe, **arguments)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("kind", ["constant", "step", "cosine", "warmup"])
def test_blocks_of_steps_give_what_single_steps_give(monkeypatch, optimizer, kind):
    """20,000 steps in 500 blocks: exact where rates are constant, and near it where they change smoothly."""
    recipe = Recipe(optimizer=optimizer, lr=0.1, weight_decay=5e-4, batch_size=50, samples=10_000, epochs=100)
    schedule = {
        "constant": None,
        "step": schedules.step_decay(0.1, 5e-4, [9_999, 15_003]),
        "cosine": schedules.cosine(0.1, 5e-4, 20_000),
        "warmup": schedules.warmup(schedules.linear(0.1, 5e-4, 20_000), 1000),
    }[kind]
    single = predict.curves(recipe, schedule, initial_norm=2.0)
    monkeypatch.setattr(predict, "_MOST_BLOCKS", 500)
    monkeypatch.setattr(predict, "_MOST_LAWS", 60)
    blocks = predict.curves(recipe, schedule, initial_norm=2.0)
    for name in ("norm", "step_angle", "epoch_angle", "settled", "effective_lr"):
        # The last epochs of a cosine run to nothing, where a block's middle stands less for the whole.
        exact, blocked = getattr(single, name)[:-2], getattr(blocks, name)[:-2]
        np.testing.assert_allclose(
            blocked, exact, rtol=1e-6 if kind in ("constant", "step") and name == "norm" else 1e-2
        )


def test_a_run_of_any_length_is_predicted_in_bounded_memory():
    """A billion steps: one number a step would be 8 GB; and 10,000 epochs of a cosine, each with a law of its own."""
    code = """
import re, time
import numpy as np
from isogon import Recipe, predict, schedules
for samples, epochs in ((10**6, 1000), (10**8, 10_000), (1, 10_000)):
    recipe = Recipe(lr=0.1, weight_decay=5e-4, batch_size=1, samples=samples, epochs=epochs)
    started = time.process_time()
    run = predict.curves(recipe, schedules.cosine(0.1, 5e-4, samples * epochs))
    assert time.process_time() - started < 5  # 0.1 s here; one number a step would take minutes
    assert len(run.norm) == epochs + 1
    assert np.isfinite(run.epoch_angle[1:]).all()
print(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])
"""
    kilobytes = int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    assert kilobytes < 200_000
