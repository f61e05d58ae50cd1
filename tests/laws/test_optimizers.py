"""Every entry of the table of optimizers keeps the same laws; a new one is held to them by being there."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from isogon.errors import ArgumentError
from isogon.lab import TRAINED
from isogon.lab.run._optimizers import make_optimizer
from isogon.recipe import Recipe, kind_of_optimizer, read_group
from isogon.theory import RULES, equilibrium_norm, law, rescale_factor, rule_of

EVERY = pytest.mark.parametrize("rule", RULES.values(), ids=list(RULES))
X = 2e-4


def motion(rule, x=X, momentum=0.9):
    return law(rule.name, lr=0.1, weight_decay=x / 0.1, momentum=momentum)


@EVERY
def test_the_slow_pole_forgets_at_the_tuning_rate(rule):
    """1 − p = x' + O(x²), x' = x/(1−μ) where the decay is coupled and x where it is not."""
    expected = X / (1 - 0.9) if rule.coupled else X
    # The next order is x'μ/(1−μ) of the first for coupled decay, 2 % here.
    assert motion(rule).slow.real == pytest.approx(expected, rel=0.03)


@EVERY
def test_correlations_start_at_the_first_one_and_fall_to_nothing(rule):
    moved = motion(rule)
    assert float(moved.decorrelation(1)) == pytest.approx(moved.first, rel=1e-9)
    lags = np.array([0, 1, 10, 100, 1_000, 10_000, 100_000, 300_000])
    falls = moved.decorrelation(lags)
    assert falls[0] == 0
    assert (np.diff(falls) >= 0).all()
    assert falls[-1] == pytest.approx(1, abs=1e-6)


@EVERY
def test_the_weights_grow_beyond_the_limit_and_not_below(rule):
    limit = rule.limit(0.9)
    assert math.isfinite(float(motion(rule, 0.999 * limit).angle(1)))
    with pytest.raises(ArgumentError, match="grow without bound"):
        motion(rule, 1.001 * limit)


@EVERY
def test_the_norm_follows_its_power_of_the_rate(rule):
    """‖w‖^p ∝ η at a fixed ηλ·λ⁻¹: twice the rate at half the decay, four times the energy's quotient."""
    if rule.norm is None:
        with pytest.raises(ArgumentError, match="known equilibrium norm"):
            equilibrium_norm(rule.name, lr=0.1, weight_decay=1e-3, momentum=0.9)
        return
    size = {"unit_grad_sq": 1.0} if rule.coupled else {"parameters": 100}
    norms = [equilibrium_norm(rule.name, lr=lr, weight_decay=X / lr, momentum=0.9, **size) for lr in (0.1, 0.2)]
    assert (norms[1] / norms[0]) ** rule.norm_power == pytest.approx(4)
    # The rescaling at a decay is the same power: ‖w*‖ at η/κ and the same λ, to first order in x.
    before, after = (equilibrium_norm(rule.name, lr=lr, weight_decay=X, momentum=0.9, **size) for lr in (0.1, 0.01))
    assert after / before == pytest.approx(rescale_factor(rule.name, factor=10), rel=1e-3)


@EVERY
def test_beta2_has_a_default_or_is_refused(rule):
    fields = {"optimizer": rule.name, "lr": 0.1, "weight_decay": 1e-3, "batch_size": 10, "samples": 100}
    if rule.beta2 is None:
        with pytest.raises(ArgumentError, match="beta2"):
            Recipe(**fields, beta2=0.5)
        assert rule.memory(0.9, None) == 0.9
    else:
        assert Recipe(**fields).motion == Recipe(**fields, beta2=rule.beta2).motion
        with pytest.raises(ArgumentError, match="beta2"):
            Recipe(**fields, beta2=rule.most_beta2)


@EVERY
def test_a_group_of_its_class_is_read_as_the_rule(rule):
    optimizer = type(rule.classes[0].upper(), (), {"param_groups": [{}]})()
    kind = kind_of_optimizer(optimizer)
    group = {"lr": 0.1, "weight_decay": 1e-3, "momentum": 0.9, **rule.flags}
    read = read_group(kind, group)
    assert (read.optimizer, read.momentum, read.weight_decay) == (rule.name, 0.9, 1e-3)
    betas = read_group(kind, {**group, "betas": (0.8, 0.95)})
    assert (betas.momentum, betas.beta2) == (0.8, 0.95 if rule.beta2 is not None else None)


@pytest.mark.parametrize("name", TRAINED)
def test_what_the_lab_trains_with_is_read_back_as_its_recipe(name):
    recipe = Recipe(optimizer=name, lr=0.1, weight_decay=1e-3, momentum=0.8, batch_size=10, samples=100)
    # Only Muon is given to some weights, which must be matrices; the others ignore the mark.
    groups = [{"params": [torch.nn.Parameter(torch.ones(3, 3))], **({"for_muon": True} if name == "muon" else {})}]
    optimizer = make_optimizer(groups, recipe)
    again = Recipe.from_optimizer(optimizer, batch_size=10, samples=100)
    assert again.motion == recipe.motion
    assert rule_of(again.optimizer) is rule_of(name)


@EVERY
def test_what_the_optimizer_keeps_is_all_scaled(rule):
    """Every tensor of a trained optimizer's state that has the weight's shape has a power; none is forgotten."""
    if rule.name not in TRAINED:
        pytest.skip("the lab does not train with it")
    recipe = Recipe(optimizer=rule.name, lr=0.1, weight_decay=1e-3, momentum=0.8, batch_size=10, samples=100)
    weight = torch.nn.Parameter(torch.ones(3, 3))
    optimizer = make_optimizer([{"params": [weight], **({"for_muon": True} if rule.name == "muon" else {})}], recipe)
    weight.grad = torch.ones(3, 3)
    optimizer.step()
    kept = {name for name, value in optimizer.state[weight].items() if getattr(value, "shape", None) == weight.shape}
    assert kept <= set(rule.buffers)
    assert kept
