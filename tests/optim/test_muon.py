"""Muon with AdamW is the two optimizers of torch side by side, and looks like one."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from isogon import Recipe, nets, schedules
from isogon.dynamics import Monitor
from isogon.errors import ArgumentError
from isogon.optim import MuonWithAdamW, drive, hidden_matrices


def network(seed=0):
    torch.manual_seed(seed)
    return nets.gpt(16, 6, depth=1, width=8, heads=2)


def split(model):
    names = set(hidden_matrices(model))
    named = dict(model.named_parameters())
    return [named[name] for name in named if name in names], [named[name] for name in named if name not in names]


def step(model, optimizers, number):
    tokens = torch.randint(16, (4, 7), generator=torch.Generator().manual_seed(number))
    for optimizer in optimizers:
        optimizer.zero_grad()
    nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).backward()
    for optimizer in optimizers:
        optimizer.step()


def same(first, second):
    return all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_it_is_the_two_optimizers_to_the_bit():
    together, apart = network(), network()
    optimizer = MuonWithAdamW(*split(together), lr=0.02, weight_decay=0.3, momentum=0.9, betas=(0.8, 0.9))
    matrices, others = split(apart)
    parts = [
        torch.optim.Muon(matrices, lr=0.02, weight_decay=0.3, momentum=0.9, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=0.02, weight_decay=0.3, betas=(0.8, 0.9)),
    ]
    for number in range(5):
        step(together, [optimizer], number)
        step(apart, parts, number)
    assert same(together, apart)
    assert not same(together, network())


def test_one_schedule_drives_both():
    model = network()
    optimizer = MuonWithAdamW(*split(model), lr=0.02)
    driver = drive(optimizer, schedules.linear(0.02, 0.1, steps=4))
    for number in range(2):
        step(model, [optimizer], number)
        driver.step()
    assert [group["lr"] for part in optimizer.parts for group in part.param_groups] == pytest.approx([0.01, 0.01])
    torchs = torch.optim.lr_scheduler.LambdaLR(MuonWithAdamW(*split(model), lr=1.0), lambda _: 0.5)
    assert [group["lr"] for part in torchs.optimizer.parts for group in part.param_groups] == [0.5, 0.5]


def test_a_resumed_run_is_the_same_to_the_bit():
    model = network()
    optimizer = MuonWithAdamW(*split(model), lr=0.02)
    for number in range(3):
        step(model, [optimizer], number)
    other = copy.deepcopy(model)
    again = MuonWithAdamW(*split(other), lr=1.0, weight_decay=0.0)
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for number in range(3, 6):
        step(model, [optimizer], number)
        step(other, [again], number)
    assert same(model, other)


def test_the_monitor_gives_each_part_its_own_law():
    model = network()
    optimizer = MuonWithAdamW(*split(model), lr=0.02, weight_decay=0.1)
    tokens = torch.randint(16, (2, 6))
    with Monitor(model, optimizer, batch_size=4, samples=8, inputs=tokens, every_steps=1) as monitor:
        for number in range(4):
            step(model, [optimizer], number)
    query = monitor.records.query("layer == 'blocks.0.attention.q.weight'")
    muon = Recipe(optimizer="muon", lr=0.02, weight_decay=0.1, momentum=0.95, batch_size=4, samples=8)
    assert query.predicted_step_angle.iloc[-1] == pytest.approx(float(muon.motion.angle(1)))
    assert "different optimizers" in monitor.notes["group:residual"]


def test_a_network_without_hidden_matrices_is_refused():
    weight = nn.Parameter(torch.ones(3))
    with pytest.raises(ArgumentError, match="matrices must be at least one weight"):
        MuonWithAdamW([], [weight])
    matrix = nn.Parameter(torch.ones(3, 3))
    optimizer = MuonWithAdamW([matrix], [weight])
    with pytest.raises(ArgumentError, match="param_group must be given when the optimizer is made"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
    matrix.grad = weight.grad = None
    optimizer.step(lambda: (matrix.sum() + weight.sum()).backward())
    assert (matrix != 1).all()


def test_a_copy_steps_by_itself():
    import copy
    import pickle

    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
    optimizer = MuonWithAdamW([model[0].weight], [model[0].bias, *model[1].parameters()], lr=0.1)
    for again in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        for group in again.param_groups:
            for weight in group["params"]:
                weight.grad = torch.ones_like(weight)
        before = again.param_groups[0]["params"][0].detach().clone()
        again.step()
        assert not torch.equal(again.param_groups[0]["params"][0], before)
        assert again.parts[0].param_groups[0] is again.param_groups[0]
