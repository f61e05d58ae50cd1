"""Averages of weights, and normalisation statistics re-estimated for them (Li, Lyu and Arora, figures 6 and 7)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import nn

from isogon.errors import ArgumentError


def average_weights(states: Sequence[Mapping[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """The mean of several state dicts, summed in float64; whole-number entries are the last state's.

    Running statistics of a normalisation are averaged too, and mean little for the averaged weights: see
    `reestimate_statistics`.
    """
    if not states or any(state.keys() != states[0].keys() for state in states):
        raise ArgumentError(
            "states", "one or more state dicts with the same keys", len(states), "take them of one model"
        )
    last = states[-1]
    return {
        key: sum((state[key].double() for state in states[1:]), states[0][key].double()).div(len(states)).to(value)
        if value.is_floating_point()
        else value.clone()
        for key, value in last.items()
    }


@torch.no_grad()
def reestimate_statistics(model: nn.Module, batches: Iterable[torch.Tensor]) -> nn.Module:
    """Set the running statistics of every batch norm to their mean over `batches`; the model keeps its modes.

    Each batch is passed through the model in training mode. Every batch counts alike (a cumulative average), and no
    parameter changes.
    """
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.track_running_stats]
    modes = {module: module.training for module in model.modules()}
    momenta = [norm.momentum for norm in norms]
    try:
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None
        model.train()
        count = 0
        for batch in batches:
            model(batch)
            count += 1
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        for module, mode in modes.items():
            module.training = mode
    if not count:
        raise ArgumentError("batches", "at least one batch", count, "an iterator can be used once only")
    return model
