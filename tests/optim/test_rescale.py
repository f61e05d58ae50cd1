"""Rescaling at a decay: angles at the law from the first steps, and its twin that touches no tensor."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from isogon import schedules
from isogon.errors import ArgumentError
from isogon.optim import RescaleOnDecay, drive
from isogon.symmetry import check
from isogon.theory.motion import law

MU = 0.9


def make_optimizer(kind, weights):
    if kind == "adamw":
        return torch.optim.AdamW(weights, lr=1.0, betas=(MU, 0.95), eps=1e-30)
    return torch.optim.SGD(weights, lr=1.0, momentum=MU, nesterov=kind == "nesterov")


def train(task, schedule, steps, *, kind="sgd", rescale=False, noise=1.0, dtype=torch.float64, count=16):
    """Unit vectors after each step, and the model."""
    model, data = task.network(dtype), task.batches(dtype, noise=noise, count=count)
    weights = task.weights(model)
    optimizer = make_optimizer(kind, weights)
    driver = drive(optimizer, schedule)
    if rescale:
        RescaleOnDecay(optimizer)
    path = []
    for step in range(steps):
        images, labels = data[step % len(data)]
        optimizer.zero_grad()
        functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        driver.step()
        path.append(torch.cat([functional.normalize(w.detach().flatten(), dim=0) for w in weights]))
    return torch.stack(path), model


@pytest.mark.parametrize(("kind", "lr", "wd"), [("sgd", 0.05, 0.02), ("nesterov", 0.05, 0.02), ("adamw", 2e-3, 5.0)])
def test_rescaling_and_the_balanced_schedule_are_one(task, kind, lr, wd):
    schedule = schedules.step_decay(lr, wd, [30, 60], 10)
    rescaled, _ = train(task, schedule, 90, kind=kind, rescale=True)
    balanced, _ = train(task, schedules.balanced(schedule), 90, kind=kind)
    bare, _ = train(task, schedule, 90, kind=kind)
    assert float((rescaled - balanced).norm(dim=1).max()) < 1e-9
    assert float((rescaled - bare).norm(dim=1).max()) > 1e-2


@pytest.mark.parametrize(("kind", "lr", "wd"), [("sgd", 0.1, 0.02), ("adamw", 2e-3, 2.0)])
def test_angles_are_the_laws_at_once_and_not_without(task, kind, lr, wd):
    """Label noise keeps gradients alive; the two layers' angles joined, in the first 20 steps after ÷ 10."""
    drop, factor = 600, 10
    schedule = schedules.step_decay(lr, wd, [drop], factor)
    beta2 = 0.95 if kind == "adamw" else None
    final = float(law(kind, lr=lr / factor, weight_decay=wd, momentum=MU, beta2=beta2).angle(1))
    ratios = {}
    for rescale in (True, False):
        path, _ = train(task, schedule, drop + 30, kind=kind, rescale=rescale, noise=30.0, count=200)
        steps = path[drop + 3 : drop + 23] - path[drop + 2 : drop + 22]
        # two unit vectors side by side: the mean squared angle is half the squared distance
        ratios[rescale] = float(steps.square().sum(dim=1).mean().div(2).sqrt()) / final
    assert ratios[True] == pytest.approx(1, abs=0.1)
    assert ratios[False] < 0.5


def test_running_statistics_follow(task):
    model, data = task.network(eps=1e-5), task.batches()
    found = check(model, data[0][0])
    optimizer = torch.optim.SGD(task.weights(model), lr=0.1, momentum=MU)
    rescaler = RescaleOnDecay(optimizer, model=model, scale_map=found)
    for images, labels in data:
        optimizer.zero_grad()
        functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    before = copy.deepcopy(model).eval()
    optimizer.param_groups[0]["lr"] = 0.1 / 16
    optimizer.zero_grad()
    for weight in task.weights(model):  # a step that moves nothing but what the rescaling moves
        weight.grad = torch.zeros_like(weight)
        optimizer.state[weight]["momentum_buffer"].zero_()
    optimizer.step()
    assert float(model[0].weight.norm() / before[0].weight.norm()) == pytest.approx(0.5)
    images = data[0][0]
    torch.testing.assert_close(model.eval()(images), before(images), rtol=1e-3, atol=1e-3)
    rescaler.close()


def test_small_falls_wait_and_rises_do_not_count():
    weight = nn.Parameter(torch.ones(4, dtype=torch.float64))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    rescaler = RescaleOnDecay(optimizer)
    sizes = []
    for rate in (1.0, 0.9, 0.5, 0.45, 2.0, 1.0):
        optimizer.param_groups[0]["lr"] = rate
        weight.grad = torch.zeros_like(weight)
        optimizer.step()
        sizes.append(float(weight.detach()[0]))
    first, second = 0.5**0.25, 0.25**0.25
    assert sizes == pytest.approx([1, 1, first, first, first, second])
    state = rescaler.state_dict()
    again = RescaleOnDecay(optimizer)
    again.load_state_dict(state)
    assert again.state_dict() == state
    with pytest.raises(ArgumentError, match="state must be of 1 parameter groups"):
        again.load_state_dict({"rates": [1.0, 2.0]})


def test_bad_input_is_refused():
    weight = [nn.Parameter(torch.ones(2))]
    with pytest.raises(ArgumentError, match="optimizer must be an SGD"):
        RescaleOnDecay(torch.optim.RMSprop(weight))
    with pytest.raises(ArgumentError, match="least_factor must be"):
        RescaleOnDecay(torch.optim.SGD(weight, lr=0.1), least_factor=1.0)
