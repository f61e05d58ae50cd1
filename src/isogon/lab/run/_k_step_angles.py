"""`Turns`: how far chosen weights turn over k steps, in every epoch (Wan et al., figure 7)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from torch import nn

from isogon.dynamics import measures
from isogon.errors import ArgumentError


def column_of(weight: str, steps: int) -> str:
    """The column of the epochs' table with the angle of `weight` over so many `steps`.

    >>> column_of("conv1.weight", 4)
    'angle of conv1.weight over 4'
    """
    return f"angle of {weight} over {steps}"


class Turns:
    """The angles of weights of `model` over k steps, √E[∠(w_t, w_t+k)²] of each epoch.

    `spans` has the numbers of steps k for each weight, by its name.

    An epoch's stretches of k steps begin with it and do not overlap; NaN where it has no whole one.
    """

    def __init__(self, model: nn.Module, spans: Mapping[str, Sequence[int]]) -> None:
        known = dict(model.named_parameters())
        for name in spans:
            if name not in known:
                raise ArgumentError("turns", "weights of the network by name", name, f"for example {next(iter(known))}")
        self._weights = {(name, steps): known[name] for name in spans for steps in spans[name]}
        self.begin_epoch()

    def begin_epoch(self) -> None:
        self._steps = 0
        self._squares: dict[tuple[str, int], list[float]] = {place: [] for place in self._weights}
        self._before = {place: weight.detach().clone() for place, weight in self._weights.items()}

    def step(self) -> None:
        """To be called after every step of the optimizer."""
        self._steps += 1
        for place, weight in self._weights.items():
            if self._steps % place[1] == 0:
                self._squares[place].append(measures.angle(self._before[place], weight.detach()) ** 2)
                self._before[place].copy_(weight.detach())

    def row(self) -> dict[str, float]:
        """The values of the epoch, by column."""
        return {
            column_of(*place): math.sqrt(sum(squares) / len(squares)) if squares else math.nan
            for place, squares in self._squares.items()
        }
