"""Equilibrium first, then a decay without weight decay: the switch by a step or by the monitor."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from isogon.dynamics import Monitor
from isogon.errors import ArgumentError
from isogon.optim import two_phase
from isogon.symmetry import check
from isogon.theory.equilibrium import steps_to_equilibrium

MU, LR, WD = 0.9, 0.1, 0.01


def run(task, steps, *, at=None, watch=False, states=None):
    model, data = task.network(torch.float32, 1e-5), task.batches(torch.float32, noise=10.0, count=100)
    optimizer = torch.optim.SGD(task.weights(model), lr=1.0, momentum=MU)
    monitor = None
    if watch:
        scale_map = check(model, data[0][0])
        monitor = Monitor(model, optimizer, batch_size=24, samples=2400, scale_map=scale_map, every_steps=5)
    phases = two_phase(optimizer, lr=LR, weight_decay=WD, at=at, monitor=monitor, ask_every=20)
    if states is not None:
        phases.load_state_dict(states)
    rates = []
    for step in range(steps):
        group = optimizer.param_groups[0]
        rates.append((group["lr"], group["weight_decay"]))
        images, labels = data[step % len(data)]
        optimizer.zero_grad()
        functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        phases.step()
    return phases, rates


def test_the_switch_at_a_step(task):
    phases, rates = run(task, 12, at=7)
    assert rates[6] == (LR, WD)
    assert rates[7] == (pytest.approx(LR / 10), 0.0)
    assert rates[11] == rates[7]
    _, resumed = run(task, 3, at=7, states=phases.state_dict())
    assert resumed[0] == rates[7]


def test_the_monitor_finds_the_switch(task):
    """Not before the norm can have settled, and not long after."""
    phases, rates = run(task, 900, watch=True)
    expected = steps_to_equilibrium(1.5, optimizer="sgd", lr=LR, weight_decay=WD, momentum=MU)
    assert phases.switch is not None
    assert 0.3 * expected < phases.switch < 6 * expected
    assert rates[phases.switch - 1] == (LR, WD)
    assert rates[phases.switch] == (pytest.approx(LR / 10), 0.0)


def test_one_of_the_two_is_needed(task):
    optimizer = torch.optim.SGD(task.weights(task.network()), lr=1.0)
    with pytest.raises(ArgumentError, match="at must be given, or else monitor"):
        two_phase(optimizer, lr=LR, weight_decay=WD)
    with pytest.raises(ArgumentError, match="factor must be"):
        two_phase(optimizer, lr=LR, weight_decay=WD, at=3, factor=1.0)
