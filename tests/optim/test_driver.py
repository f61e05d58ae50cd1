"""What `drive` does to an optimizer: resuming, skipping, rebasing, mixed models, other optimizers, refusals."""

from __future__ import annotations

import copy
import functools
import io
import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from isogon import Recipe, schedules
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


def train(model, schedule, steps, *, rebase=True, data=None, momentum=MU):
    """Directions of the weights after every step."""
    data = data or batches(next(model.parameters()).dtype)
    optimizer = torch.optim.SGD(weights_of(model), lr=1.0, momentum=momentum)
    driver = drive(optimizer, schedule, rebase=rebase)
    path, losses = [], []
    for step in range(steps):
        images, labels = data[step % len(data)]
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        driver.step()
        path.append(direction(model))
        losses.append(float(loss.detach()))
    return torch.stack(path), np.array(losses)


def distance(a, b):
    return float((a - b).norm(dim=1).max())


CONSTANT = schedules.constant(LR, WD)
STEPWISE = schedules.step_decay(LR, WD, [40, 80], 4)


def test_weight_decay_is_off():
    optimizer = torch.optim.SGD(weights_of(network()), lr=1.0, momentum=MU, weight_decay=0.3)
    drive(optimizer, schedules.exp_lr(CONSTANT, momentum=MU))
    assert optimizer.param_groups[0]["weight_decay"] == 0


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_other_momenta(momentum):
    schedule = STEPWISE
    with_decay, _ = train(network(), schedule, 60, momentum=momentum)
    without, _ = train(network(), schedules.texp(schedule, momentum=momentum), 60, momentum=momentum)
    assert distance(with_decay, without) < 1e-10


def test_rebasing_is_exact_to_the_bit():
    schedule = schedules.texp_plus(CONSTANT, momentum=MU)
    rebased, plain = network(torch.float32), network(torch.float32)
    first, _ = train(rebased, schedule, 100)
    second, _ = train(plain, schedule, 100, rebase=False)
    grown = [
        float(b.detach().norm() / a.detach().norm())
        for a, b in zip(weights_of(rebased), weights_of(plain), strict=True)
    ]
    assert all(math.log2(ratio) == round(math.log2(ratio)) > 0 for ratio in grown)
    assert torch.equal(first, second)


LATE = schedules.step_decay(LR, WD, [80, 100], 4)


@pytest.mark.parametrize("schedule", [LATE, schedules.texp(LATE, momentum=MU), schedules.texp_plus(LATE, momentum=MU)])
def test_steps_made_by_hand_at_the_rates_are_the_same_run(schedule):
    """As a CUDA graph makes them: some at a time, the weights halved in between alone."""
    steps, data, model = 110, batches(torch.float64), network()
    expected, _ = train(network(), schedule, steps)
    weights = weights_of(model)
    optimizer = torch.optim.SGD(weights, lr=1.0, momentum=MU)
    driver = drive(optimizer, schedule)
    for weight in weights:
        optimizer.state[weight]["momentum_buffer"] = torch.zeros_like(weight)
    path = []
    while len(path) < steps:
        block = range(len(path), min(len(path) + 16, steps))
        (rates,) = driver.rates(block)
        for step, lr, weight_decay, correction in zip(block, *rates, strict=True):
            images, labels = data[step % len(data)]
            gradients = torch.autograd.grad(functional.cross_entropy(model(images), labels), weights)
            with torch.no_grad():
                for weight, gradient in zip(weights, gradients, strict=True):
                    buffer = optimizer.state[weight]["momentum_buffer"]
                    buffer.add_(correction * weight).mul_(MU).add_(gradient + weight_decay * weight)
                    weight.sub_(lr * buffer)
            path.append(direction(model))
        driver.advance(len(block))
    assert driver.last_epoch == steps
    assert (driver.halvings > 0) == (schedule is not LATE)
    assert distance(torch.stack(path), expected) < 1e-10


def test_long_runs_overflow_only_without_rebasing():
    """At ηλ/(1−μ) = 0.05 rates grow e-fold in 10 steps: float32 ends after some 900, unless rebased."""
    schedule = schedules.exp_lr(schedules.constant(0.5, 0.05), momentum=0.5)
    rebased = network(torch.float32, 1e-5)
    _, losses = train(rebased, schedule, 1000, momentum=0.5)
    assert np.isfinite(losses).all()
    assert all(1e-3 < float(p.detach().norm()) < 1e3 for p in weights_of(rebased))
    with pytest.raises(IsogonError, match=r"left the range of torch\.float32 at step \d+: drive with rebase=True"):
        train(network(torch.float32, 1e-5), schedule, 1000, momentum=0.5, rebase=False)


BETAS = (0.9, 0.99)
FORMS = {
    "texp": (schedules.texp(STEPWISE, momentum=MU), lambda w: torch.optim.SGD(w, lr=3.0, momentum=MU)),
    "sgdw": (schedules.sgdw_form(STEPWISE, momentum=MU), lambda w: torch.optim.SGD(w, lr=3.0, momentum=MU)),
    "adamw": (
        schedules.adamw_form(schedules.constant(2e-3, 5.0), betas=BETAS),
        lambda w: torch.optim.AdamW(w, lr=3.0, betas=BETAS),
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_resumed_run_is_the_same_run(form):
    schedule, make = FORMS[form]

    def begin(seed=0):
        model = network(seed=seed)
        return model, make(weights_of(model))

    def reload(model, optimizer, driver, *, drive_first):
        file = io.BytesIO()
        torch.save([model.state_dict(), optimizer.state_dict(), driver.state_dict()], file)
        file.seek(0)
        states = torch.load(file, weights_only=True)
        model, optimizer = begin(seed=9)
        if drive_first:
            driver = drive(optimizer, schedule)
        optimizer.load_state_dict(states[1])
        if not drive_first:
            driver = drive(optimizer, schedule)
        model.load_state_dict(states[0])
        driver.load_state_dict(states[2])
        return model, optimizer, driver

    paths = []
    for interrupted in (False, True):
        model, optimizer = begin()
        driver = drive(optimizer, schedule)
        path = []
        for step, (images, labels) in enumerate(batches(count=100)):
            if interrupted and step in (1, 40, 79):  # at a phase's first step too
                model, optimizer, driver = reload(model, optimizer, driver, drive_first=step != 40)
            optimizer.zero_grad()
            functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            if interrupted and step in (20, 39):  # saved before the driver has heard of the step
                model, optimizer, driver = reload(model, optimizer, driver, drive_first=True)
            driver.step()
            path.append(direction(model))
        paths.append(torch.stack(path))
    assert torch.equal(*paths)


@pytest.mark.parametrize("make", [lambda schedule: schedule, functools.partial(schedules.texp_plus, momentum=MU)])
def test_a_schedule_shorter_than_the_run_is_refused(make):
    """A cosine's own steps can all be taken, the driver's last call included; the step after them cannot."""
    model = network()
    data = batches()
    path, _ = train(model, make(schedules.cosine(LR, WD, 10)), 10, data=data)
    assert torch.isfinite(path).all()
    with pytest.raises(ArgumentError, match="schedule must be as long as the run, got 'a rate of 0 from step 10 on'"):
        train(network(), make(schedules.cosine(LR, WD, 10)), 11, data=data)


def test_a_rate_of_0_in_between_is_no_end():
    again = schedules.join([schedules.cosine(LR, WD, 10), schedules.warmup(CONSTANT, 5)], [10])
    assert again.lr(10) == 0
    with_decay, _ = train(network(), again, 40)
    without, _ = train(network(), schedules.texp_plus(again, momentum=MU), 40)
    assert distance(with_decay, without) < 1e-10


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
        ordinary = STEPWISE
        scale_map = check(model, data[0][0])
        assert not scale_map.is_invariant
        paths = []
        for schedule in (ordinary, schedules.texp(ordinary, momentum=MU)):
            twin = copy.deepcopy(model)
            optimizer = torch.optim.SGD(split_groups(twin, scale_map), lr=1.0, momentum=MU)
            driver = drive(optimizer, schedule, model=twin, scale_map=scale_map)
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

    @pytest.mark.parametrize("make", [schedules.texp, schedules.texp_plus])
    def test_weights_that_are_invariant_only_together(self, make):
        """γ and β before a convolution: one direction of all parameters joined."""
        torch.manual_seed(0)
        first = nn.Sequential(
            nn.Conv2d(3, 4, 3, bias=False),
            nn.BatchNorm2d(4, eps=1e-30),
            nn.ReLU(),
            nn.Conv2d(4, 4, 3, bias=False),
            nn.BatchNorm2d(4, affine=False, eps=1e-30),
            nn.Flatten(),
            nn.Linear(144, 5).requires_grad_(False),
        ).double()
        nn.init.normal_(first[1].bias)
        data = batches()
        scale_map = check(first, data[0][0])
        assert scale_map.is_invariant
        assert "1.bias" not in scale_map.invariant
        joined = []
        for schedule in (STEPWISE, make(STEPWISE, momentum=MU)):
            model = copy.deepcopy(first)
            optimizer = torch.optim.SGD(split_groups(model, scale_map), lr=1.0, momentum=MU)
            driver = drive(optimizer, schedule, model=model, scale_map=scale_map)
            for images, labels in itertools.islice(itertools.cycle(data), 100):
                optimizer.zero_grad()
                functional.cross_entropy(model(images), labels).backward()
                optimizer.step()
                driver.step()
            joined.append(functional.normalize(torch.cat([w.detach().flatten() for w in weights_of(model)]), dim=0))
        assert float((joined[0] - joined[1]).norm()) < 1e-9

        part = torch.optim.SGD([first[0].weight, first[1].bias], lr=1.0, momentum=MU)
        with pytest.raises(ArgumentError, match=r"group 0 must be all invariant.*1 invariant and 1\.bias"):
            drive(part, make(STEPWISE, momentum=MU), model=first, scale_map=scale_map)

    def test_other_weights_need_an_optimizer_that_decays_them_alike(self, model):
        scale_map = check(model, batches()[0][0])
        groups = split_groups(model, scale_map)
        for optimizer, schedule in (
            (torch.optim.SGD(groups, lr=0.1, momentum=MU), schedules.sgdw_form(CONSTANT, momentum=MU)),
            (torch.optim.Adam(groups), schedules.adamw_form(CONSTANT)),
        ):
            with pytest.raises(ArgumentError, match="decoupled weight decay where some weights are not invariant"):
                drive(optimizer, schedule, model=model, scale_map=scale_map)
        drive(torch.optim.AdamW(groups), schedules.adamw_form(CONSTANT), model=model, scale_map=scale_map)

    def test_a_mixed_group_is_refused_by_name(self, model):
        scale_map = check(model, batches()[0][0])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=MU)
        with pytest.raises(ArgumentError, match=r"1\.weight.*split_groups"):
            drive(optimizer, schedules.exp_lr(CONSTANT, momentum=MU), model=model, scale_map=scale_map)

    def test_a_map_needs_its_model(self, model):
        scale_map = check(model, batches()[0][0])
        optimizer = torch.optim.SGD(split_groups(model, scale_map), lr=0.1, momentum=MU)
        with pytest.raises(ArgumentError, match="model must be given with a scale_map"):
            drive(optimizer, schedules.exp_lr(CONSTANT, momentum=MU), scale_map=scale_map)
        with pytest.raises(ArgumentError, match="scale_map must be given with a model"):
            drive(optimizer, schedules.exp_lr(CONSTANT, momentum=MU), model=model)

    def test_a_model_without_invariant_weights_is_refused(self):
        model = nn.Linear(3, 2)
        scale_map = check(model, torch.randn(4, 3))
        optimizer = torch.optim.SGD(split_groups(model, scale_map), lr=0.1, momentum=MU)
        with pytest.raises(ArgumentError, match="of a model with invariant weights, got 'none among weight, bias'"):
            drive(optimizer, schedules.exp_lr(CONSTANT, momentum=MU), model=model, scale_map=scale_map)


@pytest.mark.parametrize("eps", [1e-300, 1e-3])
def test_adamw_without_weight_decay(eps):
    ordinary, data = schedules.constant(2e-3, 5.0), batches()
    paths = []
    for schedule in (ordinary, schedules.adamw_form(ordinary, betas=BETAS)):
        model = network()
        optimizer = torch.optim.AdamW(weights_of(model), lr=1.0, betas=BETAS, eps=eps, weight_decay=0.1)
        driver = drive(optimizer, schedule)
        for images, labels in itertools.islice(itertools.cycle(data), 100):
            optimizer.zero_grad()
            functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            driver.step()
        paths.append(direction(model))
    assert float((paths[0] - paths[1]).norm()) < 1e-9


def test_sgdw_without_weight_decay():
    """PyTorch has no SGD with decoupled weight decay, so that the other run decays its weights by hand."""
    ordinary, data = schedules.warmup(schedules.cosine(LR, 0.4, 200), 20), batches()
    model = network()
    optimizer = torch.optim.SGD(weights_of(model), lr=1.0, momentum=MU)
    for step in range(100):
        images, labels = data[step % len(data)]
        optimizer.zero_grad()
        functional.cross_entropy(model(images), labels).backward()
        optimizer.param_groups[0]["lr"] = float(ordinary.lr(step))
        with torch.no_grad():
            torch._foreach_mul_(weights_of(model), 1 - float(ordinary.lr(step)) * 0.4)
        optimizer.step()
    path, _ = train(network(), schedules.sgdw_form(ordinary, momentum=MU), 100, data=data)
    assert float((path[-1] - direction(model)).norm()) < 1e-10


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"nesterov": True}, "nesterov must be off, got True: Nesterov's update .* has no exponential form"),
        ({"dampening": 0.1}, "dampening must be 0"),
        ({"momentum": 0.8}, "momentum must be the schedule's, 0.9"),
    ],
)
def test_what_the_equivalence_does_not_hold_for_is_refused(options, match):
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], **{"lr": 0.1, "momentum": 0.9, **options})
    with pytest.raises(ArgumentError, match=match):
        drive(optimizer, schedules.exp_lr(CONSTANT, momentum=0.9))


def test_wrong_optimizers_are_refused():
    parameter = [nn.Parameter(torch.ones(2))]
    with pytest.raises(ArgumentError, match=r"torch\.optim\.SGD for this schedule"):
        drive(torch.optim.AdamW(parameter), schedules.exp_lr(CONSTANT, momentum=0.9))
    with pytest.raises(ArgumentError, match="Adam or AdamW"):
        drive(torch.optim.SGD(parameter, lr=0.1), schedules.adamw_form(CONSTANT))
    with pytest.raises(ArgumentError, match="betas must be the schedule's"):
        drive(torch.optim.AdamW(parameter, betas=(0.8, 0.9)), schedules.adamw_form(CONSTANT))
    with pytest.raises(ArgumentError, match="amsgrad must be off"):
        drive(torch.optim.AdamW(parameter, amsgrad=True), schedules.adamw_form(CONSTANT))


class Mixed(nn.Module):
    """An invariant convolution before a classifier that is not, with a bias."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4, affine=False)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.norm(self.conv(x)).mean((2, 3)))


def read_rates(optimizer):
    return [(float(group["lr"]), group["weight_decay"]) for group in optimizer.param_groups]


def test_a_group_without_weight_decay_stays_without():
    model = Mixed()
    weights, biases = [model.conv.weight, model.head.weight], [model.head.bias]

    def made():
        groups = [{"params": weights, "weight_decay": 5e-3}, {"params": biases, "weight_decay": 0.0}]
        return torch.optim.SGD(groups, lr=0.1, momentum=MU)

    schedule = schedules.step_decay(LR, WD, [1])
    optimizer = made()
    driver = drive(optimizer, schedule)
    assert read_rates(optimizer) == [(LR, WD), (LR, 0.0)]
    assert [float(rates.weight_decay) for rates in driver.rates(3)] == [WD, 0.0]
    driver.advance(1)
    # In the middle of a run, with the state loaded before the driver is made.
    again = made()
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    drive(again, schedule).load_state_dict(driver.state_dict())
    assert read_rates(again) == read_rates(optimizer) == [(pytest.approx(LR / 10), WD), (pytest.approx(LR / 10), 0.0)]
    # Without any, the schedule's counts for all.
    plain = torch.optim.SGD([{"params": weights}, {"params": biases}], lr=0.1)
    drive(plain, schedule)
    assert read_rates(plain) == [(LR, WD)] * 2


def test_a_group_may_have_a_part_of_the_rate():
    """As timm names it: `lr_scale` multiplies the schedule's rate, whether the group's own rate has it or not."""
    model = Mixed()
    for first in (0.1, 0.025):
        groups = [{"params": [model.conv.weight], "lr": first, "lr_scale": 0.25}, {"params": [model.head.weight]}]
        optimizer = torch.optim.SGD(groups, lr=0.1, weight_decay=WD)
        driver = drive(optimizer, schedules.step_decay(0.1, WD, milestones=[1], factor=10))
        assert [rate for rate, _ in read_rates(optimizer)] == pytest.approx([0.025, 0.1])
        assert [float(rates.lr) for rates in driver.rates(1)] == pytest.approx([0.0025, 0.01])
        optimizer.step()
        driver.step()
        assert [rate for rate, _ in read_rates(optimizer)] == pytest.approx([0.0025, 0.01])
        # and a driver made again in the middle of the run finds the same
        again = drive(optimizer, schedules.step_decay(0.1, WD, milestones=[1], factor=10))
        assert again.get_last_lr() == pytest.approx([0.025, 0.1])
    groups = [{"params": [model.conv.weight], "lr_scale": 0.5}, {"params": [model.head.weight]}]
    optimizer = torch.optim.SGD(groups, lr=0.1, momentum=MU)
    with pytest.raises(ArgumentError, match="lr_scale must be 1 under this schedule"):
        drive(optimizer, schedules.texp(CONSTANT, momentum=MU))


def test_groups_that_one_schedule_cannot_serve_are_refused():
    model = Mixed()
    groups = [{"params": [model.conv.weight]}, {"params": [model.head.weight], "lr": 0.01}]
    with pytest.raises(ArgumentError, match=r"lr must be the same in all groups.*\[0.1, 0.01\]"):
        drive(torch.optim.SGD(groups, lr=0.1), CONSTANT)
    groups = [{"params": [model.conv.weight], "weight_decay": 0.0}, {"params": [model.head.weight]}]
    scale_map = check(model, torch.randn(4, 1, 6, 6))
    optimizer = torch.optim.SGD(groups, lr=0.1, momentum=MU, weight_decay=1e-3)
    with pytest.raises(ArgumentError, match="weight_decay of group 0 must be above 0"):
        drive(optimizer, schedules.texp(CONSTANT, momentum=MU), model=model, scale_map=scale_map)


def test_a_state_loaded_before_the_driver_is_made_tells_who_had_weight_decay():
    """Under an exponential schedule invariant weights train without any, which is not how they began."""
    model = Mixed()
    scale_map = check(model, torch.randn(4, 1, 6, 6))
    groups = split_groups(model, scale_map, weight_decay=WD)
    first, second = (torch.optim.SGD(groups, lr=LR, momentum=MU) for _ in range(2))
    make = functools.partial(drive, schedule=schedules.texp(CONSTANT, momentum=MU), model=model, scale_map=scale_map)
    make(first).advance(10)
    second.load_state_dict(first.state_dict())
    make(second).advance(10)
    assert read_rates(second) == read_rates(first)
    assert [decay for _, decay in read_rates(second)] == [0.0, WD]


def test_a_rate_that_groups_share_as_a_tensor_is_each_ones_own():
    rates = []
    for rate in (0.1, torch.tensor(0.1)):
        torch.manual_seed(0)
        model = Mixed()
        scale_map = check(model, torch.randn(4, 1, 6, 6))
        optimizer = torch.optim.SGD(split_groups(model, scale_map), lr=rate, momentum=MU, foreach=False)
        driver = drive(optimizer, schedules.texp(CONSTANT, momentum=MU), model=model, scale_map=scale_map)
        for seed in range(20):
            x = torch.randn(8, 1, 6, 6, generator=torch.Generator().manual_seed(seed))
            optimizer.zero_grad()
            functional.cross_entropy(model(x), torch.arange(8) % 3).backward()
            optimizer.step()
            driver.step()
        rates.append((read_rates(optimizer), float(model.conv.weight.detach().norm())))
    assert rates[1][0][0][0] == pytest.approx(rates[0][0][0][0], rel=1e-6)
    assert rates[0][0][0][0] > 1.005 * LR
    assert rates[1][0][1][0] == pytest.approx(LR)
    assert rates[1][1] == pytest.approx(rates[0][1], rel=1e-5)


@pytest.mark.parametrize("wrap", [nn.DataParallel, functools.partial(torch.compile, backend="eager")])
def test_wrapped_models_have_the_groups_of_the_model_inside(wrap):
    model, x = Mixed(), torch.randn(4, 1, 6, 6)
    wrapped, scale_map = wrap(model), check(model, x)
    plain, inner = (split_groups(net, scale_map) for net in (model, wrapped))
    assert [[id(p) for p in group["params"]] for group in inner] == [[id(p) for p in g["params"]] for g in plain]
    assert len(inner) == 2
    optimizer = torch.optim.SGD(inner, lr=0.1, momentum=MU)
    driver = drive(optimizer, schedules.texp(CONSTANT, momentum=MU), model=wrapped, scale_map=scale_map)
    assert [bool(rates.weight_decay) for rates in driver.rates(0)] == [False, True]
    before = model.norm.running_var.clone()
    driver.advance(2000)  # so far that weights, and statistics with them, are halved
    assert driver.halvings > 0
    assert float((model.norm.running_var / before).max()) < 0.3


def test_the_recipe_of_a_driven_optimizer_is_that_of_its_start():
    model = Mixed()
    warm = schedules.warmup(schedules.step_decay(LR, WD, [40]), 10)
    for schedule in (STEPWISE, warm):
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=MU)
        driver = drive(optimizer, schedule)
        for steps in (0, 60):
            driver.advance(steps)
            recipe = Recipe.from_optimizer(optimizer, batch_size=10, samples=100)
            assert (recipe.lr, recipe.weight_decay) == (LR, WD)


def test_weights_that_are_not_invariant_keep_the_schedule_that_texp_minus_was_made_from():
    model = Mixed()
    scale_map = check(model, torch.randn(4, 1, 6, 6))
    optimizer = torch.optim.SGD(split_groups(model, scale_map), lr=LR, momentum=MU)
    schedule = schedules.step_decay(LR, WD, [100], 10)
    driver = drive(optimizer, schedules.texp_minus(schedule, momentum=MU), model=model, scale_map=scale_map)
    rates = driver.rates([0, 99, 100, 150])[1]
    np.testing.assert_allclose(rates.lr, schedule.lr([0, 99, 100, 150]))
    np.testing.assert_allclose(rates.weight_decay, WD)
