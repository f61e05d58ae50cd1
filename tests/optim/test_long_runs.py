"""Float32 and bf16 over thousands of steps: no overflow, and loss curves like those of the run with weight decay."""

from __future__ import annotations

import contextlib
import functools

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from isogon import schedules
from isogon.optim import drive

MU = 0.9
PARTS = 5


@functools.cache  # a run with weight decay serves several comparisons
def loss_curve(schedule, steps, seed, autocast=contextlib.nullcontext):
    """Mean losses over each fifth of a run of a small multi-layer perceptron with batch norm."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(12, 16, bias=False),
        nn.BatchNorm1d(16, affine=False),
        nn.ReLU(),
        nn.Linear(16, 16, bias=False),
        nn.BatchNorm1d(16, affine=False),
        nn.Linear(16, 4).requires_grad_(False),
    )
    centres = torch.randn(4, 12, generator=torch.Generator().manual_seed(0))
    weights = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(weights, lr=1.0, momentum=MU)
    driver = drive(optimizer, schedule)
    losses = np.empty(steps)
    for step in range(steps):
        labels = torch.randint(0, 4, (32,), generator=generator)
        inputs = centres[labels] + 1.5 * torch.randn(32, 12, generator=generator)
        optimizer.zero_grad(set_to_none=True)
        with autocast():
            loss = functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        driver.step()
        losses[step] = float(loss.detach())
    assert np.isfinite(losses).all()
    assert all(torch.isfinite(w).all() and 1e-3 < float(w.detach().norm()) < 1e3 for w in weights)
    return losses.reshape(PARTS, -1).mean(axis=1)


def compare(ordinary, make, steps, seeds, autocast=contextlib.nullcontext):
    """The two curves agree within what seeds do to them, each fifth of the run by itself; ln of the rate's growth."""
    without = make(ordinary, momentum=MU)
    curves = np.array([[loss_curve(s, steps, seed, autocast) for seed in seeds] for s in (ordinary, without)])
    means, error = curves.mean(axis=1), np.sqrt(curves.var(axis=1, ddof=1).sum(axis=0) / len(seeds))
    assert np.all(np.abs(means[0] - means[1]) < error + 0.003 * means[0])
    return float(without.log_lr(steps) - without.log_lr(0))


@pytest.mark.slow
def test_five_thousand_steps_at_a_raised_rate():
    """ηλ/(1−μ) = 0.02: without rebasing the rate would be e^200 times larger at the end."""
    grown = compare(schedules.constant(0.1, 0.02), schedules.exp_lr, 5000, seeds=range(2))
    assert grown > 88  # ln of float32's largest number


def test_bf16_autocast():
    """Operations in bf16 on weights in float32, for so long that without rebasing the rate would leave both ranges."""
    grown = compare(
        schedules.constant(0.1, 0.025),
        schedules.exp_lr,
        1200,
        seeds=range(2),
        autocast=lambda: torch.autocast("cpu", torch.bfloat16),
    )
    assert grown > 89  # ln of bf16's largest number, which is hardly less than float32's


@pytest.mark.slow
@pytest.mark.parametrize("make", [schedules.exp_lr, schedules.texp_plus])
def test_a_hundred_thousand_steps_with_the_papers_rates(make):
    grown = compare(schedules.constant(0.1, 5e-4), make, 100_000, seeds=range(3))
    assert grown > 90  # beyond float32
