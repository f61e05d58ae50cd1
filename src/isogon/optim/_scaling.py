"""Multiplying weights by c together with everything that has to follow, so that the run continues unchanged.

The state (w, η, λ, v) is equivalent to (cw, c²η, λ/c², v/c) for SGD, and (w, η, λ, m, v, ε) to (cw, cη, λ/c, m/c, v/c²,
ε/c) for Adam's family: gradients of a scale-invariant loss shrink by c. With c a power of two SGD is exact.
Running statistics of a batch norm whose input has degree d follow as c^d and c^(2d).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from isogon.errors import ArgumentError, check_number
from isogon.symmetry import unwrap
from isogon.theory import RULES, UpdateRule, rule_of


def rule_for_scaling(optimizer: torch.optim.Optimizer) -> UpdateRule:
    """The rule by which rates follow scaled weights; Adam's L2 term scales as AdamW's decay does.

    Only of optimizers whose buffers are known: a class that merely has the name of SGD may keep others.
    """
    name = type(optimizer).__name__
    if isinstance(optimizer, torch.optim.SGD):
        return rule_of("sgd")
    if isinstance(optimizer, torch.optim.Adam):
        return rule_of("adamw")
    decoupled = [rule for rule in RULES.values() if not rule.coupled]
    for rule in decoupled:
        if name.lower() in rule.classes:
            return rule
    known = ", ".join(name for rule in decoupled for name in rule.classes)
    raise ArgumentError("optimizer", f"torch's SGD or Adam, or one of {known}", name, "others scale in no known way")


@torch.no_grad()
def scale_weights(optimizer: torch.optim.Optimizer, groups: Iterable[dict[str, Any]], factor: float) -> None:
    """Multiply the weights of `groups` by c = `factor` and their buffers by the powers that keep the run the same."""
    powers = rule_for_scaling(optimizer).buffers
    for group in groups:
        for parameter in group["params"]:
            parameter.mul_(factor)
            for name, power in powers.items():
                buffer = optimizer.state.get(parameter, {}).get(name)
                if buffer is not None:
                    buffer.mul_(factor**power)
        if "eps" in group:
            group["eps"] /= factor


@torch.no_grad()
def scale_statistics(model: nn.Module, degrees: Mapping[str, Sequence[float]], factor: float) -> None:
    """Let running means and variances follow weights multiplied by c = `factor`: c^d and c^(2d), d by channel."""
    inner = unwrap(model)
    for name, by_channel in degrees.items():
        module = inner.get_submodule(name)
        if isinstance(module.running_mean, torch.Tensor) and isinstance(module.running_var, torch.Tensor):
            scale = factor ** torch.tensor(by_channel, dtype=torch.float64)
            module.running_mean.mul_(scale.to(module.running_mean))
            module.running_var.mul_(scale.square().to(module.running_var))


def separate_rates(optimizer: torch.optim.Optimizer) -> None:
    """Give each group a learning rate of its own where torch lets several share one tensor."""
    seen: set[int] = set()
    for group in optimizer.param_groups:
        if isinstance(group["lr"], torch.Tensor):
            if id(group["lr"]) in seen:
                group["lr"] = group["lr"].clone()
            seen.add(id(group["lr"]))


def trade_scale(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Multiply all weights by c = `factor` and the rates so that the networks stay the same, at any step of a run.

    SGD: η·c², λ/c². AdamW and its like: η·c, λ/c, so that ηλ is kept (theorem C.2 of Li, Lyu and Arora is the case of
    step 0). What one writes as a larger initialisation is thus a smaller learning rate.

    A scheduler that computes rates from a base of its own (LambdaLR, OneCycleLR, `drive`) undoes this at its next step:
    trade before it is made. What it finds in the optimizer, `initial_lr`, is traded too.
    """
    check_number("factor", factor, low=0, low_open=True, cure="2 doubles the weights")
    power = rule_for_scaling(optimizer).rate_power
    scale_weights(optimizer, optimizer.param_groups, factor)
    separate_rates(optimizer)
    for group in optimizer.param_groups:
        group["lr"] *= factor**power
        group["weight_decay"] /= factor**power
        if "initial_lr" in group:
            group["initial_lr"] *= factor**power
        if "initial_weight_decay" in group:
            group["initial_weight_decay"] /= factor**power
