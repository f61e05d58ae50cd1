"""Each finding in a record that calls for it, and its absence in one that does not."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest
import torch

from isogon import Recipe
from isogon.dynamics import Monitor, findings
from isogon.dynamics.record._tables import SCHEMA, table
from isogon.errors import ArgumentError
from isogon.theory.equilibrium import angle_after_decay, approach_rate

RECIPE = Recipe(lr=0.1, weight_decay=5e-4, momentum=0.9, batch_size=100, samples=10_000, epochs=20)
LAYERS = ("one", "two", "three", "all")


def healthy(steps: int = 2000, every: int = 10) -> pd.DataFrame:
    """The record of a run in equilibrium from the start, where nothing is wrong."""
    step = np.arange(0, steps, every)
    law, epoch_law = float(RECIPE.motion.angle(1)), float(RECIPE.motion.angle(100))
    frames = []
    for layer in LAYERS:
        frame = pd.DataFrame(dict.fromkeys(SCHEMA, np.nan), index=range(len(step)))
        frame = frame.assign(
            step=step,
            epoch=step // 100,
            layer=layer,
            lr=RECIPE.lr,
            weight_decay=RECIPE.weight_decay,
            norm=1.0,
            step_angle=law,
            predicted_step_angle=law,
            predicted_epoch_angle=epoch_law,
            epoch_angle=np.where(step % 100 == 90, 0.7 * epoch_law, np.nan),
            radial=1e-6,
            in_equilibrium=True,
        )
        frames.append(frame)
    return table(pd.concat(frames).sort_values("step", kind="stable"))


def select(records: pd.DataFrame, name: str, recipe: Recipe = RECIPE, **options):
    return [finding for finding in findings(records, recipe, **options) if finding.name == name]


def with_drop(*, settled: bool, angle: float = 1.0) -> pd.DataFrame:
    """A drop by 10 at step 1000; before it the angles were `angle` times the law."""
    records = healthy()
    late = records.step >= 1000
    records.loc[late, "lr"] /= 10
    records.loc[late, ["step_angle", "predicted_step_angle"]] /= np.sqrt(10)
    records["step_angle"] *= angle
    records.loc[~late, "in_equilibrium"] = settled
    return records


def test_a_healthy_run_has_no_findings():
    epoch_angle = 0.7 * float(RECIPE.motion.angle(100))
    assert findings(healthy(), RECIPE, target_epoch_angle=epoch_angle, ghost_batch=64) == []
    assert findings(with_drop(settled=True), RECIPE) == []
    assert select(with_drop(settled=True, angle=0.3), "early_decay") == []  # the detector knows better than one angle
    assert findings(table(), RECIPE) == []


def test_a_decay_before_equilibrium_says_how_much_was_missing():
    rate = approach_rate("sgd", lr=0.1, weight_decay=5e-4, momentum=0.9)
    # As 300 steps after an earlier drop by 100.
    share = float(angle_after_decay(300, factor=100, final_angle=1.0, rate=rate))
    (match,) = select(with_drop(settled=False, angle=share), "early_decay")
    assert match.severity == "warning"
    assert match.numbers["step"] == 1000
    assert match.numbers["factor"] == pytest.approx(10)
    assert match.numbers["layers_late"] == match.numbers["layers"] == 3, "the layer `all` is none besides the others"
    assert "(3 of 3 layers were short)" in match.advice
    assert match.layer in ("one", "two", "three")
    expected = (np.log(99 / 0.1) / rate - 300) / 100
    assert match.numbers["epochs_missing"] == pytest.approx(expected, rel=0.01)
    assert f"{expected:.2g} epochs short" in match.advice
    assert "rescale" in match.advice


def test_a_smooth_schedule_is_no_decay():
    records = with_drop(settled=False, angle=0.3).assign(in_equilibrium=False)
    assert select(records, "early_decay")
    for end, stairs in itertools.product((2100, 1991), (1, 100)):
        part = np.clip(records.step // stairs * stairs / end, 0, 1)
        assert select(records.assign(lr=0.1 * (1 + np.cos(np.pi * part)) / 2), "early_decay") == []
        assert select(records.assign(lr=0.1 * (1 - part)), "early_decay") == []
    # Stairs of few epochs, and a record of few rows: a cosine of five epochs falls by 1.9 from one to the next.
    for epochs, every in itertools.product((3, 5, 8, 20), (1, 20)):
        stairs = 0.1 * (1 + np.cos(np.pi * (records.step // (2000 // epochs)) / epochs)) / 2
        assert select(records.assign(lr=stairs)[records.step % (10 * every) == 0], "early_decay") == []
        warm = stairs * np.minimum(1, (1 + records.step) / 300)
        assert select(records.assign(lr=warm)[records.step % (10 * every) == 0], "early_decay") == []
    # A small fall, or a dip, does not hide the drops after it.
    for early in (0.8, 0.995):
        fallen = records.lr * np.where(records.step >= 300, early, 1.0)
        assert len(select(records.assign(lr=fallen), "early_decay")) == 1
    # With a warm-up before and growth in between, as exponential schedules have it, a drop remains one.
    growing = records.lr * np.minimum(1, (1 + records.step) / 200) * np.exp(1e-4 * records.step)
    assert len(select(records.assign(lr=growing), "early_decay")) == 1


def test_a_run_that_is_not_finite_has_diverged():
    records = healthy(steps=1000)
    epochs = pd.DataFrame({"epoch": range(10), "step": 100 * np.arange(10) + 90, "loss": 1.0, "test_loss": np.nan})
    assert select(records, "diverged", epochs=epochs) == []
    (match,) = select(records, "diverged", epochs=epochs.assign(loss=[1.0] * 7 + [np.inf, np.nan, np.nan]))
    assert (match.severity, match.numbers["epoch"]) == ("problem", 7)
    # Of a run under way the newest epoch's loss may come later, as the Trainer's does.
    late = epochs.assign(loss=[1.0] * 9 + [np.nan])
    assert select(records, "diverged", epochs=late, under_way=True) == []
    assert len(select(records, "diverged", epochs=late)) == 1
    # Weights that are not finite have no rows; nobody need give a loss.
    (match,) = select(records[records.step < 500], "diverged", epochs=epochs[["epoch", "step"]])
    assert match.numbers == {"epoch": 5, "last_step": 490}
    assert select(records[records.step < 500], "diverged", epochs=epochs[:0]) == []


def test_divergence_in_a_real_run_is_found(make_task):
    task = make_task(width=4, samples=256)
    optimizer = torch.optim.SGD(task.parameters, lr=0.04, weight_decay=1e-3)
    recipe = Recipe.from_optimizer(optimizer, batch_size=32, samples=256)
    with Monitor(task.model, optimizer, batch_size=32, samples=256, inputs=task.inputs[:4]) as monitor:
        task.train(optimizer, 16)
        healthy_so_far = select(monitor.records, "diverged", recipe, epochs=monitor.epochs)
        optimizer.param_groups[0]["lr"] = 1e38
        task.train(optimizer, 16, start=16)
    assert healthy_so_far == []
    (match,) = select(monitor.records, "diverged", recipe, epochs=monitor.epochs)
    assert match.numbers["epoch"] == 2


def test_a_decay_in_a_real_run_is_found(make_task):
    task = make_task(width=4, samples=1024)
    optimizer = torch.optim.SGD(task.parameters, lr=0.04, momentum=0.9, weight_decay=1e-3)
    recipe = Recipe.from_optimizer(optimizer, batch_size=32, samples=1024)
    with Monitor(task.model, optimizer, batch_size=32, samples=1024, inputs=task.inputs[:4], every_steps=5) as monitor:
        task.train(optimizer, 60)
        optimizer.param_groups[0]["lr"] /= 10
        task.train(optimizer, 20, start=60)
    (match,) = select(monitor.records, "early_decay", recipe)
    assert match.numbers["step"] == 60
    assert 1 < match.numbers["epochs_missing"] < 100


@pytest.mark.parametrize("factor", [0.4, 2.5])
def test_weight_decay_that_misses_a_target_comes_with_the_one_that_hits(factor):
    records = healthy()
    measured = records.epoch_angle.max()
    name = "weight_decay_too_small" if factor > 1 else "weight_decay_too_large"
    (match,) = [f for f in findings(records, RECIPE, target_epoch_angle=factor * measured) if "weight" in f.name]
    assert match.name == name
    assert match.numbers["suggested_weight_decay"] == pytest.approx(5e-4 * factor**2)
    assert match.layer == "all"
    for close in (0.9, 1.0, 1.15):
        assert findings(records, RECIPE, target_epoch_angle=close * measured) == []


def test_the_weight_decay_is_judged_at_the_peak_learning_rate():
    records = with_drop(settled=True)
    target = records.epoch_angle.max()
    records.loc[records.step >= 1000, "epoch_angle"] /= 3
    assert findings(records, RECIPE, target_epoch_angle=target) == []


def test_a_layer_out_of_balance():
    records = healthy()
    for factor in (0.5, 2.0):
        off = records.copy()
        off.loc[off.layer == "two", "step_angle"] *= factor
        (match,) = select(off, "unbalanced_layer")
        assert match.layer == "two"
        assert match.numbers["speed"] / match.numbers["usual_speed"] == pytest.approx(factor)
        near = records.copy()
        near.loc[near.layer == "two", "step_angle"] *= factor**0.5
        assert select(near, "unbalanced_layer") == []


def test_a_group_with_its_own_rate_is_not_out_of_balance():
    records = healthy()
    two = records.layer == "two"
    records.loc[two, ["step_angle", "predicted_step_angle"]] *= 3
    assert select(records, "unbalanced_layer") == []


def test_a_weight_believed_invariant_that_leaks():
    records = healthy()
    records.loc[records.layer == "three", "radial"] = 0.03 * (-1.0) ** np.arange((records.layer == "three").sum())
    (match,) = select(records, "radial_leak")
    assert match.layer == "three"
    assert match.severity == "problem"
    assert match.numbers["radial"] == pytest.approx(0.03)
    nobody_believed = records.copy()
    nobody_believed.loc[nobody_believed.layer == "three", "predicted_step_angle"] = np.nan
    assert select(nobody_believed, "radial_leak") == []


def test_a_frozen_layer(make_task):
    """In a real run: a layer that no loss reaches, with weight decay shrinking it all the same."""
    task = make_task()
    frozen = dict(task.model.named_parameters())["body.1.conv.weight"]
    optimizer = torch.optim.SGD(task.parameters, lr=0.1, momentum=0.9, weight_decay=5e-3)
    recipe = Recipe.from_optimizer(optimizer, batch_size=32, samples=128)
    with Monitor(task.model, optimizer, batch_size=32, samples=128, inputs=task.inputs[:4], every_steps=1) as monitor:
        for step in range(20):
            optimizer.zero_grad()
            task.loss(step).backward()
            frozen.grad.zero_()
            optimizer.step()
    matches = select(monitor.records, "frozen_layer", recipe)
    assert [finding.layer for finding in matches] == ["body.1.conv.weight"]
    assert matches[0].severity == "problem"
    slow = healthy()
    slow.loc[slow.layer == "one", "step_angle"] *= 0.01
    assert select(slow, "frozen_layer") == []


@pytest.mark.parametrize(("share", "severity"), [(0.4, None), (0.6, "warning"), (1.5, "problem"), (3000, "problem")])
def test_the_product_near_the_pole_bound(share, severity):
    records = healthy()
    records["weight_decay"] = share * RECIPE.motion.bound / RECIPE.lr
    matches = select(records, "near_pole_bound")
    assert [finding.severity for finding in matches] == ([severity] if severity else [])
    if matches:
        assert matches[0].numbers["intrinsic_lr"] == pytest.approx(share * RECIPE.motion.bound)


def test_a_norm_on_its_way_to_overflow():
    """An exponential learning rate: both grow by e^(step/100), and float32 ends after about 8,900 steps."""
    records = healthy()
    records["weight_decay"] = 0.0
    growth = np.exp(records.step / 100)
    records["norm"], records["lr"] = growth, 0.1 * growth**2
    matches = select(records, "norm_overflow")
    assert {finding.layer for finding in matches} == set(LAYERS)
    assert matches[0].numbers["steps_left"] == pytest.approx(100 * np.log(3.4e38) - 1990, rel=0.01)
    decayed = records.assign(weight_decay=1e-4)
    assert select(decayed, "norm_overflow") == []
    constant = records.assign(lr=0.1)
    assert select(constant, "norm_overflow") == []
    shrinking = records.assign(norm=1 / growth)
    assert select(shrinking, "norm_overflow") == []


def test_a_batch_below_the_ghost_batch():
    (match,) = select(healthy(), "batch_below_ghost_batch", ghost_batch=128)
    assert match.numbers == {"batch_size": 100, "ghost_batch": 128}
    assert select(healthy(), "batch_below_ghost_batch", ghost_batch=100) == []
    assert select(healthy(), "batch_below_ghost_batch") == []


def test_the_gravest_come_first_and_bad_arguments_are_refused():
    records = healthy()
    records.loc[records.layer == "two", "step_angle"] *= 2
    records.loc[records.layer == "three", "radial"] = 0.5
    order = [finding.severity for finding in findings(records, RECIPE, ghost_batch=128)]
    assert order == ["problem", "warning", "warning"]
    with pytest.raises(ArgumentError, match="target_epoch_angle"):
        findings(records, RECIPE, target_epoch_angle=0)
    with pytest.raises(ArgumentError, match="ghost_batch"):
        findings(records, RECIPE, ghost_batch=0)
