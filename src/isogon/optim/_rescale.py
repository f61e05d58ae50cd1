"""Rescaling at a decay (Wan et al., section 4): the new equilibrium from the first step after the rate drops."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import nn

from isogon.errors import ArgumentError, check_number
from isogon.optim._groups import group_names, invariant_groups, list_names
from isogon.optim._scaling import rule_for_scaling, scale_statistics, scale_weights
from isogon.symmetry import ScaleMap
from isogon.theory import rescale_factor


class RescaleOnDecay:
    """Multiply invariant weights by κ^(−1/4) when their learning rate is divided by κ (AdamW, Lion, Muon: κ^(−1/2)).

    Buffers, second moments and, with `model` and `scale_map`, running statistics follow, so that angles are the law's
    from the first step after the drop. It watches the optimizer's groups just before each step; a rate that has fallen
    by less than `least_factor` since the last rescaling (a cosine's single step) waits until it has fallen by that
    much. `schedules.balanced` makes the same networks without touching a tensor.

    Without `model` and `scale_map` every weight of the optimizer counts as invariant: for a network with others (a
    classifier, trained γ and β) give both, or its function changes at the drop.

    Groups may fall by factors of their own: a running mean is multiplied by Π_G c_G^(d_G), d_G the degree of the norm's
    input in the weights of group G. Weights that are invariant only together must fall together, or are refused.
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
        self._rule = rule_for_scaling(optimizer)  # refuses an optimizer whose buffers we do not know
        self.optimizer, self.model, self.least_factor = optimizer, model, least_factor
        self._invariant = invariant_groups(optimizer, model, scale_map)
        self._map, self._names = scale_map, group_names(optimizer, model)
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
        factors = [1.0] * len(self._rates)
        for index, (group, invariant) in enumerate(zip(self.optimizer.param_groups, self._invariant, strict=True)):
            rate, before = float(group["lr"]), self._rates[index]
            if before is None or rate > before:
                self._rates[index] = rate
            elif invariant and rate > 0 and before / rate >= self.least_factor:
                fall = float(f"{before / rate:.9g}")  # groups fall alike, rounding aside
                factors[index] = rescale_factor(self._rule.name, factor=fall)
                self._rates[index] = rate
        for factor in set(factors) - {1.0}:
            self._rescale([index for index, value in enumerate(factors) if value == factor], factor)

    def _rescale(self, chosen: list[int], factor: float) -> None:
        """Multiply the weights of the `chosen` groups by `factor`, and what depends on them."""
        if self._map is not None and self.model is not None:
            names = {name for index in chosen for name in self._names[index]}
            if names != set(self._map.alone) and not names <= set(self._map.invariant):
                raise ArgumentError(
                    "lr",
                    "divided by one factor in all groups",
                    f"another factor for {list_names(sorted(names))}",
                    "the weights of this model are invariant only together",
                )
            scale_statistics(self.model, self._map.statistics_degrees(names), factor)
        groups = [self.optimizer.param_groups[index] for index in chosen]
        scale_weights(self.optimizer, groups, factor)
        _scale_gradients(groups, 1 / factor)


def _scale_gradients(groups: list[dict[str, Any]], factor: float) -> None:
    """Gradients that were computed at the old scale, as they would be at the new one: g(cw) = g(w)/c."""
    for parameter in itertools.chain.from_iterable(group["params"] for group in groups):
        if parameter.grad is not None:
            parameter.grad.mul_(factor)
