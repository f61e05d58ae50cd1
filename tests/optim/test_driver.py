"""Weight decay folded into the learning rate, on a real convolutional network with real mini-batches."""

from __future__ import annotations

import copy
import io
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from isogon import schedules
from isogon.errors import ArgumentError, IsogonError
from isogon.optim import drive, split_groups
from isogon.symmetry import check

MU, LR, WD = 0.9, 0.05, 0.02


@pytest.fixture(scope="module", autouse=True)
def _task(task):
    global network, batches, weights_of
    network, batches, weights_of = task.network, task.batches, task.weights


def direction(model):
    return torch.cat([functional.normalize(p.detach().double().flatten(), dim=0) for p in weights_of(model)])


def train(model, schedule, steps, *, rebase=True, correct=True, data=None, momentum=MU, on_step=None, optimizer=None):
    """Directions of the weights after every step."""
    data = data or batches(next(model.parameters()).dtype)
    optimizer = optimizer or torch.optim.SGD(weights_of(model), lr=1.0, momentum=momentum)
    driver = drive(optimizer, schedule, rebase=rebase)
    if not correct:
        driver._corrected = True
    path, losses = [], []
    for step in range(steps):
        images, labels = data[step % len(data)]
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        driver.step()
        if not correct:
            driver._corrected = True
        path.append(direction(model))
        losses.append(float(loss.detach()))
        if on_step is not None:
            on_step(step, driver)
    return torch.stack(path), np.array(losses)


def apart(a, b):
    return float((a - b).norm(dim=1).max())


# Two equal runs nudged by 1e-15 stay within 1e-11 for so long: ReLUs that flip make the rest chaos.
HORIZON = 120
ORDINARY = {
    "constant": schedules.constant(LR, WD),
    "step": schedules.step_decay(LR, WD, [40, 80], 4),
    "phases": schedules.phases([(0, LR, WD), (40, LR / 2, 2 * WD), (80, LR, WD / 3)]),
    "cosine": schedules.cosine(LR, WD, 200),
    "warm-up": schedules.warmup(schedules.cosine(LR, WD, 200), 20, start=0.05),
}
REFERENCE = {}


def reference(name):
    if name not in REFERENCE:
        REFERENCE[name] = train(network(), ORDINARY[name], HORIZON)[0]
    return REFERENCE[name]


def test_the_horizon():
    nudged = network()
    with torch.no_grad():
        for parameter in weights_of(nudged):
            parameter.add_(1e-15 * torch.randn_like(parameter))
    drift = apart(train(nudged, ORDINARY["constant"], HORIZON)[0], reference("constant"))
    assert 1e-15 < drift < 1e-11


@pytest.mark.parametrize("rebase", [True, False])
@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("constant", schedules.exp_lr),
        ("step", schedules.texp),
        ("phases", schedules.texp),
        ("constant", schedules.texp_plus),
        ("step", schedules.texp_plus),
        ("phases", schedules.texp_plus),
        ("cosine", schedules.texp_plus),
        ("warm-up", schedules.texp_plus),
    ],
)
def test_the_same_network_without_weight_decay(name, make, rebase):
    model = network()
    path, _ = train(model, make(ORDINARY[name], momentum=MU), HORIZON, rebase=rebase)
    assert apart(path, reference(name)) < 1e-10
    assert all(group["weight_decay"] == 0 for group in [train_group(model, make(ORDINARY[name], momentum=MU))])


def train_group(model, schedule):
    optimizer = torch.optim.SGD(weights_of(model), lr=1.0, momentum=MU, weight_decay=0.3)
    drive(optimizer, schedule)
    return optimizer.param_groups[0]


def test_texp_without_its_corrections_is_measurably_off():
    path, _ = train(network(), schedules.texp(ORDINARY["step"], momentum=MU), HORIZON, correct=False)
    assert apart(path, reference("step")) > 1e-4


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_other_momenta(momentum):
    schedule = ORDINARY["step"]
    with_decay, _ = train(network(), schedule, 60, momentum=momentum)
    without, _ = train(network(), schedules.texp(schedule, momentum=momentum), 60, momentum=momentum)
    assert apart(with_decay, without) < 1e-10


def test_rebasing_is_exact_to_the_bit():
    schedule = schedules.texp_plus(ORDINARY["constant"], momentum=MU)
    rebased, plain = network(torch.float32), network(torch.float32)
    first, _ = train(rebased, schedule, 100)
    second, _ = train(plain, schedule, 100, rebase=False)
    grown = [
        float(b.detach().norm() / a.detach().norm())
        for a, b in zip(weights_of(rebased), weights_of(plain), strict=True)
    ]
    assert all(math.log2(ratio) == round(math.log2(ratio)) > 0 for ratio in grown)
    assert torch.equal(first, second)


def test_long_runs_overflow_only_without_rebasing():
    """At ηλ/(1−μ) = 0.05 rates grow e-fold in 10 steps: float32 ends after some 900, unless rebased."""
    schedule = schedules.exp_lr(schedules.constant(0.5, 0.05), momentum=0.5)
    kept = network(torch.float32, 1e-5)
    _, losses = train(kept, schedule, 1500, momentum=0.5)
    assert np.isfinite(losses).all()
    assert all(1e-3 < float(p.detach().norm()) < 1e3 for p in weights_of(kept))
    with pytest.raises(IsogonError, match=r"left the range of torch\.float32 at step \d+: drive with rebase=True"):
        train(network(torch.float32, 1e-5), schedule, 1500, momentum=0.5, rebase=False)


def test_a_resumed_run_is_the_same_run():
    schedule = schedules.texp(ORDINARY["step"], momentum=MU)
    data = batches()
    whole, _ = train(network(), schedule, 100, data=data)

    model = network()
    optimizer = torch.optim.SGD(weights_of(model), lr=1.0, momentum=MU)
    driver = drive(optimizer, schedule)
    for step in range(100):
        if step in (1, 40, 79):  # at a phase's first step too
            file = io.BytesIO()
            torch.save([model.state_dict(), optimizer.state_dict(), driver.state_dict()], file)
            file.seek(0)
            states = torch.load(file, weights_only=True)
            model = network(seed=9)
            optimizer = torch.optim.SGD(weights_of(model), lr=3.0, momentum=MU)
            if step == 40:
                optimizer.load_state_dict(states[1])
                driver = drive(optimizer, schedule)
            else:
                driver = drive(optimizer, schedule)
                optimizer.load_state_dict(states[1])
            model.load_state_dict(states[0])
            driver.load_state_dict(states[2])
        images, labels = data[step % len(data)]
        optimizer.zero_grad()
        functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        driver.step()
        assert torch.equal(direction(model), whole[step])


def test_skipped_and_repeated_steps_do_not_advance():
    model = network(torch.float32, 1e-5)
    optimizer = torch.optim.SGD(weights_of(model), lr=1.0, momentum=MU)
    driver = drive(optimizer, schedules.cosine(0.1, 1e-3, 10))
    driver.step()
    assert driver.last_epoch == 0
    for parameter in weights_of(model):
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    driver.step()
    driver.step()
    assert driver.last_epoch == 1
    assert driver.get_last_lr() == [pytest.approx(float(schedules.cosine(0.1, 1e-3, 10).lr(1)))]
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(torch.zeros((), requires_grad=True) * 1.0).backward()
    weights_of(model)[0].grad = torch.full_like(weights_of(model)[0], math.inf)
    scaler.step(optimizer)
    scaler.update()
    driver.step()
    assert driver.last_epoch == 1
    driver.close()
    optimizer.step()
    driver.step()
    assert driver.last_epoch == 1


def test_ordinary_schedules_drive_any_optimizer():
    parameter = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.RMSprop([parameter], lr=1.0)
    driver = drive(optimizer, schedules.step_decay(0.1, 1e-3, [1]))
    assert (optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["weight_decay"]) == (0.1, 1e-3)
    parameter.grad = torch.ones(3)
    optimizer.step()
    driver.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.01)
    assert isinstance(driver, torch.optim.lr_scheduler.LRScheduler)


class TestMixedModels:
    """Weights before norms take the exponential schedule; classifier and affine keep weight decay."""

    @pytest.fixture
    def model(self):
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(3, 6, 3, bias=False), nn.BatchNorm2d(6, eps=1e-30), nn.ReLU(), nn.Flatten(), nn.Linear(384, 5)
        ).double()

    def test_the_same_network(self, model):
        data = batches()
        ordinary = ORDINARY["step"]
        found = check(model, data[0][0])
        assert not found.is_invariant
        paths = []
        for schedule in (ordinary, schedules.texp(ordinary, momentum=MU)):
            twin = copy.deepcopy(model)
            optimizer = torch.optim.SGD(split_groups(twin, found), lr=1.0, momentum=MU)
            driver = drive(optimizer, schedule, model=twin, scale_map=found)
            for step in range(100):
                images, labels = data[step % len(data)]
                optimizer.zero_grad()
                functional.cross_entropy(twin(images), labels).backward()
                optimizer.step()
                driver.step()
            paths.append(twin)
        torch.testing.assert_close(
            functional.normalize(paths[0][0].weight.flatten(), dim=0),
            functional.normalize(paths[1][0].weight.flatten(), dim=0),
            rtol=0,
            atol=1e-9,
        )
        torch.testing.assert_close(paths[0][4].weight, paths[1][4].weight, rtol=0, atol=1e-9)
        # running statistics followed the rebased weights, so that both evaluate alike
        paths[0].eval(), paths[1].eval()
        with torch.no_grad():
            scale = float(paths[1][0].weight.norm() / paths[0][0].weight.norm())
            torch.testing.assert_close(paths[1][1].running_var, paths[0][1].running_var * scale**2, rtol=0.1, atol=0)

    def test_a_mixed_group_is_refused_by_name(self, model):
        found = check(model, batches()[0][0])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=MU)
        with pytest.raises(ArgumentError, match=r"1\.weight.*split_groups"):
            drive(optimizer, schedules.exp_lr(ORDINARY["constant"], momentum=MU), model=model, scale_map=found)

    def test_a_map_needs_its_model(self, model):
        found = check(model, batches()[0][0])
        optimizer = torch.optim.SGD(split_groups(model, found), lr=0.1, momentum=MU)
        with pytest.raises(ArgumentError, match="model must be given with a scale_map"):
            drive(optimizer, schedules.exp_lr(ORDINARY["constant"], momentum=MU), scale_map=found)

    def test_a_model_without_invariant_weights_is_refused(self):
        model = nn.Linear(3, 2)
        found = check(model, torch.randn(4, 3))
        optimizer = torch.optim.SGD(split_groups(model, found), lr=0.1, momentum=MU)
        with pytest.raises(ArgumentError, match="of a model with invariant weights"):
            drive(optimizer, schedules.exp_lr(ORDINARY["constant"], momentum=MU), model=model, scale_map=found)


def test_adamw_without_weight_decay():
    ordinary, betas, data = schedules.constant(2e-3, 5.0), (0.9, 0.99), batches()
    paths = []
    for schedule in (ordinary, schedules.adamw_form(ordinary, betas=betas)):
        model = network()
        optimizer = torch.optim.AdamW(weights_of(model), lr=1.0, betas=betas, eps=1e-300, weight_decay=0.1)
        driver = drive(optimizer, schedule)
        for step in range(100):
            images, labels = data[step % len(data)]
            optimizer.zero_grad()
            functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            driver.step()
        paths.append(direction(model))
    assert float((paths[0] - paths[1]).norm()) < 1e-9


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"nesterov": True}, "nesterov must be off"),
        ({"dampening": 0.1}, "dampening must be 0"),
        ({"momentum": 0.8}, "momentum must be the schedule's, 0.9"),
    ],
)
def test_what_the_equivalence_does_not_hold_for_is_refused(options, match):
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], **{"lr": 0.1, "momentum": 0.9, **options})
    with pytest.raises(ArgumentError, match=match):
        drive(optimizer, schedules.exp_lr(ORDINARY["constant"], momentum=0.9))


def test_wrong_optimizers_are_refused():
    parameter = [nn.Parameter(torch.ones(2))]
    with pytest.raises(ArgumentError, match=r"torch\.optim\.SGD for this schedule"):
        drive(torch.optim.AdamW(parameter), schedules.exp_lr(ORDINARY["constant"], momentum=0.9))
    with pytest.raises(ArgumentError, match="Adam or AdamW"):
        drive(torch.optim.SGD(parameter, lr=0.1), schedules.adamw_form(ORDINARY["constant"]))
    with pytest.raises(ArgumentError, match="betas must be the schedule's"):
        drive(torch.optim.AdamW(parameter, betas=(0.8, 0.9)), schedules.adamw_form(ORDINARY["constant"]))
