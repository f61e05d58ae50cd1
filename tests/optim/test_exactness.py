"""The same networks without weight decay: 1,000 steps of a convolutional network on real mini-batches, in float64.

Rounding makes two equal runs differ, and a chaotic training would blow that up, so each schedule's run with weight
decay has a twin whose first weights are nudged by 1e-15: only while the twin stays close can a comparison be asked for.
"""

from __future__ import annotations

import functools
import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional

from isogon import schedules
from isogon.lab import load
from isogon.optim import drive

MU, LR, WD = 0.9, 0.05, 0.04  # weights grow by e^20 in 1,000 steps, and the rate by e^40
STEPS, BATCH, SAMPLES = 1000, 32, 1024

ORDINARY = {
    "constant": schedules.constant(LR, WD),
    "phases": schedules.phases([(0, LR, WD), (350, LR / 5, WD), (550, LR / 5, 3 * WD), (800, LR / 2, WD / 3)]),
    "cosine": schedules.warmup(schedules.cosine(LR, WD, STEPS), 50),  # from a rate of exactly 0
}


@functools.cache
def samples():
    """Fashion-MNIST shrunk to 7×7 pixels."""
    data = load("fashion-mini")
    images = functional.avg_pool2d(data.train_x[:SAMPLES].double(), 4)
    return (images - images.mean()) / images.std(), data.train_y[:SAMPLES]


def batches():
    """Shuffled again each epoch, the same for every run."""
    images, labels = samples()
    generator = torch.Generator().manual_seed(1)
    while True:
        for chosen in torch.randperm(SAMPLES, generator=generator).split(BATCH):
            yield images[chosen], labels[chosen]


def directions(schedule, *, steps=STEPS, rebase=True, nudge=0.0, correct=True):
    """Unit vectors of the two convolutions after every step."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, bias=False),
        nn.BatchNorm2d(4, affine=False, eps=1e-30),
        nn.ReLU(),
        nn.Conv2d(4, 6, 3, bias=False),
        nn.BatchNorm2d(6, affine=False, eps=1e-30),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(54, 10).requires_grad_(False),
    ).double()
    weights = [model[0].weight, model[3].weight]
    with torch.no_grad():
        for weight in weights:
            weight += nudge * torch.randn(weight.shape)
    optimizer = torch.optim.SGD(weights, lr=1.0, momentum=MU)
    driver = drive(optimizer, schedule, rebase=rebase)
    driver._corrected = not correct
    path = []
    for images, labels in itertools.islice(batches(), steps):
        optimizer.zero_grad()
        functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        driver.step()
        driver._corrected = not correct
        path.append([weight.detach().flatten().clone() for weight in weights])
    return torch.cat([functional.normalize(torch.stack(layer), dim=1) for layer in zip(*path, strict=True)], dim=1)


@functools.cache
def with_decay(name):
    return directions(ORDINARY[name])


def error(name, path):
    """Distance from the run with weight decay, step by step."""
    return (path - with_decay(name)[: len(path)]).norm(dim=1)


@functools.cache
def horizon(name):
    """Steps for which a nudge of 1e-15 has not grown to 1e-11."""
    far = error(name, directions(ORDINARY[name], nudge=1e-15)) > 1e-11
    return int(far.nonzero()[0]) if far.any() else STEPS


@pytest.mark.parametrize("name", ORDINARY)
def test_the_horizon_is_the_whole_run(name):
    """On this network an error of 1e-15 dies out, although the weights go a long way (some fifty radians in all)."""
    assert horizon(name) == STEPS
    assert float(with_decay(name).diff(dim=0).norm(dim=1).sum()) > 20


@pytest.mark.parametrize(
    ("name", "make", "rebase"),
    [
        ("constant", schedules.exp_lr, True),
        ("phases", schedules.texp, True),
        pytest.param("phases", schedules.texp, False, marks=pytest.mark.slow),
        pytest.param("phases", schedules.texp_plus, False, marks=pytest.mark.slow),
        ("cosine", schedules.texp_plus, True),
    ],
)
def test_the_same_networks_without_weight_decay(name, make, rebase):
    path = directions(make(ORDINARY[name], momentum=MU), rebase=rebase)
    assert float(error(name, path)[: horizon(name)].max()) < 1e-10


def test_texp_without_its_corrections_is_measurably_off():
    path = directions(schedules.texp(ORDINARY["phases"], momentum=MU), steps=300, correct=False)
    assert float(error("phases", path).max()) > 1e-3
