"""Averages of weights, re-estimated statistics, and the distance between groups of runs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from isogon.dynamics.averages import average_weights, reestimate_statistics
from isogon.dynamics.ensembles import error_sum, null_variation, total_variation
from isogon.errors import ArgumentError


def test_the_average_is_the_mean_and_keeps_types(make_task):
    states = [make_task(seed=seed).model.state_dict() for seed in range(3)]
    states[0] = {k: v.clone() for k, v in states[0].items()}
    mean = average_weights(states)
    for key, value in mean.items():
        assert value.dtype == states[0][key].dtype
        if value.is_floating_point():
            expected = torch.stack([state[key].double() for state in states]).mean(0)
            assert torch.allclose(value.double(), expected, atol=1e-7)
    assert average_weights(states[:1]).keys() == states[0].keys()
    with pytest.raises(ArgumentError, match="same keys"):
        average_weights([states[0], {}])


def test_statistics_are_those_of_the_batches_together(make_task):
    task = make_task()
    model = task.model
    model.eval()
    dropout = nn.Dropout()
    model.add_module("dropout", dropout.train())
    before = [p.clone() for p in model.parameters()]
    batches = list(task.inputs.split(64))
    reestimate_statistics(model, batches)
    stem_norm = next(m for m in model.modules() if isinstance(m, nn.BatchNorm2d))
    with torch.no_grad():
        activations = [model[0].conv(batch) for batch in batches]
    expected = torch.stack([a.mean((0, 2, 3)) for a in activations]).mean(0)
    variance = torch.stack([a.var((0, 2, 3)) for a in activations]).mean(0)
    assert torch.allclose(stem_norm.running_mean, expected, atol=1e-5)
    assert torch.allclose(stem_norm.running_var, variance, rtol=1e-4)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert not stem_norm.training
    assert dropout.training
    assert stem_norm.momentum == 0.1
    with pytest.raises(ArgumentError, match="batches"):
        reestimate_statistics(model, iter(()))
    assert not model.training


def predictions(runs: int, images: int, seed: int, shift: float = 0.0) -> np.ndarray:
    """Predicted classes of runs that are right with probability 0.7 − shift, else wrong at random."""
    rng = np.random.default_rng(seed)
    right = rng.random((runs, images)) < 0.7 - shift
    return np.where(right, np.arange(images) % 10, rng.integers(0, 10, (runs, images)))


def test_equal_groups_differ_by_the_bias_that_the_null_shows_and_it_falls_with_the_runs():
    estimates, null = [], []
    for runs in (25, 100, 400):
        left, right = predictions(runs, 300, 1), predictions(runs, 300, 2)
        estimates.append(total_variation(left, right, classes=10))
        null.append(null_variation(predictions(2 * runs, 300, 3), classes=10))
    assert np.allclose(estimates, null, rtol=0.1)
    # The bias falls like the inverse root of the number of runs.
    assert estimates[0] / estimates[1] == pytest.approx(2, rel=0.2)
    assert estimates[1] / estimates[2] == pytest.approx(2, rel=0.2)
    targets = np.arange(300) % 10
    assert estimates[2] < error_sum(predictions(400, 300, 1), predictions(400, 300, 2), targets)


def test_unequal_groups_differ_by_more_than_the_null():
    left, right = predictions(80, 300, 1), predictions(80, 300, 2, shift=0.3)
    exact = 0.3 * 0.9  # the mass that moves from the right class to the nine others
    estimate = total_variation(left, right, classes=10)
    assert estimate > 1.5 * null_variation(predictions(160, 300, 3), classes=10)
    assert estimate == pytest.approx(exact, rel=0.2)
    assert total_variation(left, left, classes=10) == 0


def test_errors_add_up_when_they_are_on_other_images():
    targets = np.zeros(4, dtype=int)
    left, right = np.array([[1, 0, 0, 0]] * 3), np.array([[0, 1, 0, 0]] * 3)
    assert error_sum(left, right, targets) == 0.5
    assert total_variation(left, right, classes=2) == 0.5


def test_what_is_no_prediction_is_refused():
    good = predictions(4, 5, 0)
    for bad in (good[0], good.astype(float), good[:0]):
        with pytest.raises(ArgumentError, match="runs, images"):
            total_variation(bad, good, classes=10)
    with pytest.raises(ArgumentError, match="from 0 to 2"):
        total_variation(good, good, classes=3)
    with pytest.raises(ArgumentError, match="5 images"):
        total_variation(good, good[:, :3], classes=10)
    with pytest.raises(ArgumentError, match="two runs"):
        null_variation(good[:1], classes=10)
