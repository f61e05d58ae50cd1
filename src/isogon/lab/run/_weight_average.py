"""An exponential moving average of a network's weights, which is tested in their place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn


class WeightAverage:
    """a ← d a + (1 − d) w after step t, with d = min(decay, (1 + t)/(10 + t)), so that the first weights are soon gone.

    Buffers, such as running statistics, are those of the last step.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._weights: list[Tensor] = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._decay, self._steps = decay, 0
        #: of the trained weights, in the network's order
        self.averages = [weight.detach().clone() for weight in self._weights]

    @torch.no_grad()
    def step(self) -> None:
        share = float(self.shares(self._steps))
        torch._foreach_lerp_(self.averages, [weight.detach() for weight in self._weights], share)
        self._steps += 1

    def shares(self, steps: ArrayLike) -> NDArray[Any]:
        """What the average takes of the weights, 1 − d, after so many steps before."""
        before = np.asarray(steps)
        return np.asarray(1 - np.minimum(self._decay, (1 + before) / (10 + before)))

    def count(self, steps: int) -> None:
        """So many steps were made in all, by something that moved the averages itself."""
        self._steps = steps

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
        for weight, average in zip(self._weights, self.averages, strict=True):
            held = weight.clone()
            weight.copy_(average)
            average.copy_(held)

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self._steps, "averages": self.averages}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._steps = int(state["steps"])
        for average, saved in zip(self.averages, state["averages"], strict=True):
            average.copy_(saved)
