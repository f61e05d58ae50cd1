"""Float32 over thousands of steps: no overflow, and losses like those of the run with weight decay."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from isogon import schedules
from isogon.optim import drive

MU = 0.9


def mean_late_loss(schedule, steps, seed):
    """Mean loss over the second half of a run of a small multi-layer perceptron with batch norm."""
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
    total = 0.0
    for step in range(steps):
        labels = torch.randint(0, 4, (32,), generator=generator)
        inputs = centres[labels] + 1.5 * torch.randn(32, 12, generator=generator)
        optimizer.zero_grad(set_to_none=True)
        loss = functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        driver.step()
        if step >= steps // 2:
            total += float(loss.detach())
    assert all(torch.isfinite(w).all() for w in weights)
    return total / (steps - steps // 2), driver


def compare(ordinary, make, steps, seeds):
    with_decay = np.array([mean_late_loss(ordinary, steps, seed)[0] for seed in seeds])
    runs = [mean_late_loss(make(ordinary, momentum=MU), steps, seed) for seed in seeds]
    without = np.array([loss for loss, _ in runs])
    grown = float(runs[0][1].exponential.log_scale(steps))
    error = np.sqrt((with_decay.var(ddof=1) + without.var(ddof=1)) / len(seeds))
    assert abs(with_decay.mean() - without.mean()) < 3 * error + 0.01 * with_decay.mean()
    return grown


def test_five_thousand_steps_at_a_raised_rate():
    """ηλ/(1−μ) = 0.02: without rebasing the rate would be e^200 times larger at the end."""
    grown = compare(schedules.constant(0.1, 0.02), schedules.exp_lr, 5000, seeds=range(2))
    assert grown > 88  # ln of float32's largest number


@pytest.mark.slow
@pytest.mark.parametrize("make", [schedules.exp_lr, schedules.texp_plus])
def test_a_hundred_thousand_steps_with_the_papers_rates(make):
    grown = compare(schedules.constant(0.1, 5e-4), make, 100_000, seeds=range(3))
    assert grown > 45  # the rate grows by twice that: e^90, beyond float32
