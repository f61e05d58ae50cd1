"""Rescaling at a decay (Wan et al., section 4): the new equilibrium from the first step after the rate drops."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from isogon.errors import ArgumentError, check_number
from isogon.optim.groups import invariant_groups, invariant_names
from isogon.optim.scaling import rate_power, scale_statistics, scale_weights
from isogon.symmetry import ScaleMap
from isogon.theory.equilibrium import rescale_factor


class RescaleOnDecay:
    """Multiply invariant weights by κ^(−1/4) when their learning rate is divided by κ (AdamW, Lion, Muon: κ^(−1/2)).

    Buffers, second moments and, with `model` and `scale_map`, running statistics follow, so that angles are the law's
    from the first step after the drop. It watches the optimizer's groups just before each step; a rate that has fallen
    by less than `least_factor` since the last rescaling (a cosine's single step) waits until it has fallen by that
    much. `schedules.balanced` makes the same networks without touching a tensor.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        model: nn.Module | None = None,
        scale_map: ScaleMap | None = None,
        least_factor: float = 1.5,
    ) -> None:
        check_number(
            "least_factor", least_factor, low=1, low_open=True, cure="1.5 ignores what a cosine does in one step"
        )
        rate_power(optimizer)  # refuses an optimizer whose buffers we do not know
        self.optimizer, self.model, self.least_factor = optimizer, model, least_factor
        self._invariant = invariant_groups(optimizer, model, scale_map)
        self._statistics = {} if scale_map is None else scale_map.statistics_degrees(invariant_names(scale_map))
        self._rates: list[float | None] = [None] * len(optimizer.param_groups)
        self._hook = optimizer.register_step_pre_hook(self._before_step)

    def close(self) -> None:
        """Take the hook off the optimizer."""
        self._hook.remove()

    def state_dict(self) -> dict[str, Any]:
        return {"rates": list(self._rates)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if len(state_dict["rates"]) != len(self._rates):
            raise ArgumentError(
                "state",
                f"of {len(self._rates)} parameter groups",
                len(state_dict["rates"]),
                "load it into the same set-up",
            )
        self._rates = list(state_dict["rates"])

    def _before_step(self, *_: Any) -> None:
        factors = set()
        for index, (group, invariant) in enumerate(zip(self.optimizer.param_groups, self._invariant, strict=True)):
            rate, before = float(group["lr"]), self._rates[index]
            if before is None or rate > before:
                self._rates[index] = rate
            elif invariant and rate > 0 and before / rate >= self.least_factor:
                factor = rescale_factor(_family(self.optimizer), factor=before / rate)
                scale_weights(self.optimizer, [group], factor)
                _scale_gradients(group["params"], 1 / factor)
                self._rates[index] = rate
                factors.add(factor)
        if self.model is not None and self._statistics and len(factors) == 1:
            scale_statistics(self.model, self._statistics, factors.pop())


def _scale_gradients(parameters: list[nn.Parameter], factor: float) -> None:
    """Gradients that were computed at the old scale, as they would be at the new one: g(cw) = g(w)/c."""
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad.mul_(factor)


def _family(optimizer: torch.optim.Optimizer) -> str:
    return "sgd" if rate_power(optimizer) == 2 else "adamw"
