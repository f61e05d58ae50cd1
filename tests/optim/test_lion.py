"""Lion is its formula, in one tensor or many, and behaves as torch's optimizers do."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from isogon import Recipe
from isogon.errors import ArgumentError
from isogon.optim import Lion


def weights(seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = [(3, 4), (5,), (2, 1, 3)]
    return [nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64)) for shape in shapes]


def set_gradients(parameters, seed):
    generator = torch.Generator().manual_seed(seed)
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(parameter.dtype)


def formula(parameters, steps, lr, decay, beta1, beta2):
    """One weight at a time, as the paper writes it."""
    answers, averages = [p.detach().clone() for p in parameters], [torch.zeros_like(p) for p in parameters]
    for step in range(steps):
        set_gradients(parameters, step)
        for number, (parameter, w, m) in enumerate(zip(parameters, answers, averages, strict=True)):
            g = parameter.grad
            answers[number] = w - lr * ((beta1 * m + (1 - beta1) * g).sign() + decay * w)
            averages[number] = beta2 * m + (1 - beta2) * g
    return answers


@pytest.mark.parametrize("tensor_lr", [False, True])
def test_ten_steps_are_the_formulas(tensor_lr):
    parameters = weights()
    expected = formula(weights(), 10, 0.01, 0.3, 0.8, 0.95)
    lr = torch.tensor(0.01, dtype=torch.float64) if tensor_lr else 0.01
    optimizer = Lion(parameters, lr=lr, betas=(0.8, 0.95), weight_decay=0.3)
    for step in range(10):
        set_gradients(parameters, step)
        optimizer.step()
    for parameter, answer in zip(parameters, expected, strict=True):
        torch.testing.assert_close(parameter.detach(), answer, rtol=1e-12, atol=1e-14)


def test_without_a_gradient_nothing_moves_and_types_may_differ():
    kept, moved = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3, dtype=torch.float64))
    optimizer = Lion([kept, moved], lr=0.1, weight_decay=0.5)
    moved.grad = torch.ones_like(moved)
    optimizer.step()
    assert kept.tolist() == [1, 1, 1]
    assert moved.tolist() == pytest.approx([0.85] * 3)
    kept.grad = -torch.ones_like(kept)
    optimizer.step()
    assert kept.tolist() == pytest.approx([1.05] * 3)


def test_a_closure_is_called_with_gradients_on():
    weight = nn.Parameter(torch.ones(2))
    optimizer = Lion([weight], lr=0.5)

    def closure():
        optimizer.zero_grad()
        loss = (3 * weight).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 6
    assert weight.tolist() == [0.5, 0.5]


def test_a_resumed_run_is_the_same_to_the_bit():
    parameters = weights()
    optimizer = Lion(parameters, lr=0.01, weight_decay=0.1)
    for step in range(4):
        set_gradients(parameters, step)
        optimizer.step()
    others = weights()
    again = Lion(others, lr=1.0)
    for other, parameter in zip(others, parameters, strict=True):
        other.data.copy_(parameter)
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for each, group in ((optimizer, parameters), (again, others)):
        set_gradients(group, 9)
        each.step()
    assert all(torch.equal(a, b) for a, b in zip(parameters, others, strict=True))


def test_its_recipe_is_read():
    recipe = Recipe.from_optimizer(Lion(weights(), lr=1e-4, weight_decay=1.0), batch_size=10, samples=100)
    assert (recipe.optimizer, recipe.momentum, recipe.beta2, recipe.weight_decay) == ("lion", 0.9, 0.99, 1.0)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"lr": -1.0}, "lr must be a finite number at least 0"),
        ({"betas": (0.9, 1.0)}, "betas must be"),
        ({"betas": (0.9,)}, "betas must be two numbers"),
        ({"weight_decay": -0.1}, "weight_decay must be a finite number at least 0"),
    ],
)
def test_bad_settings_are_refused(options, match):
    with pytest.raises(ArgumentError, match=match):
        Lion(weights(), **options)
