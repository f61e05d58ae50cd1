"""An exponential moving average of a network's weights, which is tested in their place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


class WeightAverage:
    """a ← d a + (1 − d) w after step t, with d = min(decay, (1 + t)/(10 + t)), so that the first weights are soon gone.

    Buffers, such as running statistics, are those of the last step.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._weights: list[Tensor] = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._decay, self._steps = decay, 0
        self._averages = [weight.detach().clone() for weight in self._weights]

    @torch.no_grad()
    def step(self) -> None:
        decay = min(self._decay, (1 + self._steps) / (10 + self._steps))
        torch._foreach_lerp_(self._averages, [weight.detach() for weight in self._weights], 1 - decay)
        self._steps += 1

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Within it the network has the averages as its weights."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for weight, average in zip(self._weights, self._averages, strict=True):
            held = weight.clone()
            weight.copy_(average)
            average.copy_(held)

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self._steps, "averages": self._averages}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._steps = int(state["steps"])
        for average, saved in zip(self._averages, state["averages"], strict=True):
            average.copy_(saved)
