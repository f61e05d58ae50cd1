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
        return torch.optim.AdamW(weights, lr=1.0, betas=(MU, 0.95), eps=1e-4)
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
    """Label noise keeps gradients alive; the two layers' angles joined, in 20 steps after ÷ 10."""
    drop, factor = 600, 10
    schedule = schedules.step_decay(lr, wd, [drop], factor)
    beta2 = 0.95 if kind == "adamw" else None
    final = float(law(kind, lr=lr / factor, weight_decay=wd, momentum=MU, beta2=beta2).angle(1))

    def ratio(path, after):
        steps = path[drop + after : drop + after + 20].diff(dim=0)
        # two unit vectors side by side: the mean squared angle is half the squared distance
        return float(steps.square().sum(dim=1).mean().div(2).sqrt()) / final

    options = {"kind": kind, "noise": 30.0, "count": 200}
    rescaled, _ = train(task, schedule, drop + 23, rescale=True, **options)
    balanced, _ = train(task, schedules.balanced(schedule), drop + 23, **options)
    bare, _ = train(task, schedule, drop + 130, **options)
    assert ratio(rescaled, 2) == pytest.approx(1, abs=0.1)
    assert ratio(balanced, 2) == pytest.approx(1, abs=0.1)
    assert ratio(bare, 2) < 0.5
    assert ratio(bare, 100) < 0.8  # at ηλ 40 times the papers': theirs takes thousands of steps


class TestRunningStatistics:
    """A rescaling changes no output in eval mode."""

    @pytest.fixture
    def model(self):
        """Two convolutions in a row, so that the first norm's input has degree 1 in each of them."""
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(3, 4, 3, bias=False),
            nn.Conv2d(4, 6, 3, bias=False),
            nn.BatchNorm2d(6, affine=False, eps=1e-30),
            nn.ReLU(),
            nn.Conv2d(6, 8, 3, bias=False),
            nn.BatchNorm2d(8, affine=False, eps=1e-30),
            nn.Flatten(),
            nn.Linear(128, 5).requires_grad_(False),
        )
        return model.double()

    def after_a_fall(self, task, model, groups, falls):
        """The model before and after each group's rate has been divided by its fall, in a step that moves nothing."""
        data = task.batches()
        scale_map = check(model, data[0][0])
        optimizer = torch.optim.SGD([{"params": group} for group in groups], lr=0.1, momentum=MU)
        rescaler = RescaleOnDecay(optimizer, model=model, scale_map=scale_map)
        for images, labels in data:
            optimizer.zero_grad()
            functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
        before = copy.deepcopy(model)
        for group, fall in zip(optimizer.param_groups, falls, strict=True):
            group["lr"] /= fall
            for weight in group["params"]:
                weight.grad = torch.zeros_like(weight)
                optimizer.state[weight]["momentum_buffer"].zero_()
        optimizer.step()
        rescaler.close()
        return before, model, data[0][0]

    @pytest.mark.parametrize("falls", [(16, 16, 16), (16, 81, 1), (1, 256, 16)])
    def test_follow_groups_that_fall_by_their_own_factors(self, task, model, falls):
        groups = [[model[index].weight] for index in (0, 1, 4)]
        before, after, images = self.after_a_fall(task, model, groups, falls)
        for index, fall in zip((0, 1, 4), falls, strict=True):
            torch.testing.assert_close(after[index].weight, before[index].weight * fall**-0.25)
        torch.testing.assert_close(after.eval()(images), before.eval()(images), rtol=1e-10, atol=1e-10)
        size = (falls[0] * falls[1]) ** -0.25
        torch.testing.assert_close(after[2].running_mean, before[2].running_mean * size)
        torch.testing.assert_close(after[2].running_var, before[2].running_var * size**2)

    def test_weights_invariant_only_together_fall_together(self, task, model):
        model[2] = nn.BatchNorm2d(6, eps=1e-30).double()
        nn.init.normal_(model[2].bias)
        groups = [[w for w in task.weights(model) if w.ndim > 1], [w for w in task.weights(model) if w.ndim == 1]]
        twin = copy.deepcopy(model)
        before, after, images = self.after_a_fall(task, model, groups, (16, 16))
        torch.testing.assert_close(after.eval()(images), before.eval()(images), rtol=1e-10, atol=1e-10)
        groups = [[w for w in task.weights(twin) if w.ndim > 1], [w for w in task.weights(twin) if w.ndim == 1]]
        with pytest.raises(ArgumentError, match=r"lr must be divided by one factor .* 2\.bias, 2\.weight"):
            self.after_a_fall(task, twin, groups, (1, 16))


def test_factors_that_differ_by_rounding_are_one():
    weights = [nn.Parameter(torch.ones(2, dtype=torch.float64)) for _ in range(2)]
    optimizer = torch.optim.SGD([{"params": [weights[0]], "lr": 0.1}, {"params": [weights[1]], "lr": 0.7}])
    RescaleOnDecay(optimizer)
    for rates in ((0.1, 0.7), (0.01, 0.07 * (1 + 1e-13))):
        for group, weight, rate in zip(optimizer.param_groups, weights, rates, strict=True):
            group["lr"], weight.grad = rate, torch.zeros_like(weight)
        optimizer.step()
    assert torch.equal(*weights)


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
    with pytest.raises(ArgumentError, match="optimizer must be torch's SGD"):
        RescaleOnDecay(torch.optim.RMSprop(weight))
    with pytest.raises(ArgumentError, match="least_factor must be"):
        RescaleOnDecay(torch.optim.SGD(weight, lr=0.1), least_factor=1.0)
