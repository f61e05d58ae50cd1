"""The updates that an optimizer of the lab makes, as kernels on its own weights and buffers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from isogon.lab.gpu.fused._update import Rate, Rule, TensorUpdate
from isogon.optim import Lion, MuonWithAdamW
from isogon.theory import Floats


class Weight(NamedTuple):
    """A parameter, the 16-bit copy of it and the moving average, where there are any, and its gradient's type."""

    parameter: torch.Tensor
    copy: torch.Tensor | None
    average: torch.Tensor | None
    gradient: torch.dtype


class FusedOptimizer:
    """The step of `optimizer` on `weights`, at rates that are set for the steps of an epoch at once."""

    def __init__(self, optimizer: torch.optim.Optimizer, weights: Sequence[Weight], steps: int) -> None:
        self._optimizer, self._groups = optimizer, optimizer.param_groups
        device = weights[0].parameter.device
        self._rates = torch.zeros(len(self._groups), len(Rate), steps, device=device)
        group_of = {id(p): number for number, group in enumerate(self._groups) for p in group["params"]}
        # Tensors of one update are of one group and of the same kinds; those that Muon turns, of one shape.
        alike: dict[tuple[Any, ...], list[int]] = {}
        for place, weight in enumerate(weights):
            number = group_of[id(weight.parameter)]
            shape = tuple(weight.parameter.shape) if self._is_for_muon(number) else None
            alike.setdefault((number, weight.gradient, weight.copy is None, shape), []).append(place)
        self._updates = [
            (places, self._rates[kind[0]], self._make(kind[0], [weights[place] for place in places]))
            for kind, places in alike.items()
        ]

    def _is_for_muon(self, number: int) -> bool:
        optimizer = self._optimizer
        return isinstance(optimizer, MuonWithAdamW) and number < len(optimizer.parts[0].param_groups)

    def _make(self, number: int, weights: Sequence[Weight]) -> TensorUpdate | MuonUpdate:
        group = self._groups[number]

        def buffers(name: str) -> list[torch.Tensor]:
            return [_buffer(self._optimizer, weight.parameter, name) for weight in weights]

        parameters = [weight.parameter.detach() for weight in weights]
        how: dict[str, Any] = {
            "copies": [weight.copy for weight in weights if weight.copy is not None],
            "averages": [weight.average for weight in weights if weight.average is not None],
            "gradient": weights[0].gradient,
        }
        if self._is_for_muon(number):
            return MuonUpdate(parameters, group, buffers("momentum_buffer"), **how)
        if isinstance(self._optimizer, torch.optim.SGD):
            firsts = buffers("momentum_buffer") if group["momentum"] else []
            rule = Rule.NESTEROV if group["nesterov"] else Rule.SGD
            return TensorUpdate(rule, parameters, firsts=firsts, betas=(group["momentum"], 0.0), **how)
        if isinstance(self._optimizer, Lion):
            return TensorUpdate(Rule.LION, parameters, firsts=buffers("exp_avg"), betas=group["betas"], **how)
        for weight in weights:
            self._optimizer.state[weight.parameter].setdefault("step", torch.tensor(0.0))
        firsts, seconds, eps = buffers("exp_avg"), buffers("exp_avg_sq"), group["eps"]
        return TensorUpdate(
            Rule.ADAMW, parameters, firsts=firsts, seconds=seconds, betas=group["betas"], eps=eps, **how
        )

    def set_rates(
        self, rates: Sequence[tuple[Floats, Floats, Floats]], before: int, average: NDArray[Any] | float
    ) -> None:
        """The rates of an epoch's steps (`Driver.rates`), `before` which so many were made, and what averages take."""
        table = np.zeros(self._rates.shape)
        ended = before + 1 + np.arange(table.shape[2])
        for rows, group, moving in zip(table, self._groups, rates, strict=True):
            rows[Rate.LR], rows[Rate.DECAY], rows[Rate.CORRECTION] = moving
            beta1, beta2 = group.get("betas", (0.0, 0.0))
            rows[Rate.FIRST_BIAS], rows[Rate.SECOND_BIAS] = 1 - beta1**ended, np.sqrt(1 - beta2**ended)
            rows[Rate.AVERAGE] = average
        self._rates.copy_(torch.from_numpy(table.astype(np.float32)))

    def point_to(self, gradients: Sequence[torch.Tensor]) -> None:
        """The gradients of every later step lie here."""
        for places, _, update in self._updates:
            update.point_to([gradients[place] for place in places])

    def launch(self, place: torch.Tensor, clip: torch.Tensor | None) -> None:
        """The step by those gradients, multiplied by `clip`, at the rates of the epoch's step `place`."""
        for _, rates, update in self._updates:
            update.launch(rates, place, clip)

    def count(self, steps: int) -> None:
        """Let the optimizer know how many steps were made in all."""
        counters = [state["step"] for state in self._optimizer.state.values() if "step" in state]
        if counters:
            torch._foreach_zero_(counters)
            torch._foreach_add_(counters, float(steps))


class MuonUpdate:
    """Muon's step on matrices of one shape, whose updates are made orthogonal together."""

    def __init__(
        self,
        weights: Sequence[torch.Tensor],
        group: Mapping[str, Any],
        firsts: Sequence[torch.Tensor],
        *,
        copies: Sequence[torch.Tensor],
        averages: Sequence[torch.Tensor],
        gradient: torch.dtype,
    ) -> None:
        self._group, (height, width) = group, weights[0].shape
        self._directions = torch.empty(len(weights), height, width, dtype=torch.bfloat16, device=weights[0].device)
        self._orthogonal = torch.empty_like(self._directions)
        self._begin = TensorUpdate(
            Rule.MUON_BEGINS,
            weights,
            firsts=firsts,
            copies=list(self._directions),
            gradient=gradient,
            betas=(group["momentum"], 0.0),
        )
        # The ratio of adjust_lr_fn="match_rms_adamw".
        self._end = TensorUpdate(
            Rule.MUON_ENDS,
            weights,
            copies=copies,
            averages=averages,
            gradient=torch.bfloat16,
            ratio=0.2 * math.sqrt(max(height, width)),
        )
        self._end.point_to(list(self._orthogonal))

    def point_to(self, gradients: Sequence[torch.Tensor]) -> None:
        self._begin.point_to(gradients)

    def launch(self, rates: torch.Tensor, place: torch.Tensor, clip: torch.Tensor | None) -> None:
        self._begin.launch(rates, place, clip)
        group = self._group
        turned = orthogonal(self._directions, group["ns_coefficients"], group["ns_steps"], group["eps"])
        self._orthogonal.copy_(turned)
        self._end.launch(rates, place)


def orthogonal(
    matrices: torch.Tensor, coefficients: tuple[float, float, float], steps: int, eps: float
) -> torch.Tensor:
    """`torch.optim.Muon`'s Newton–Schulz iteration on a stack of matrices in bfloat16."""
    linear, cubic, quintic = coefficients
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices
    x = x / torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True).clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=cubic, alpha=quintic), x, beta=linear)
    return x.mT if tall else x


def _buffer(optimizer: torch.optim.Optimizer, parameter: torch.Tensor, name: str) -> torch.Tensor:
    """The optimizer's buffer; zeros before the first step, after which they hold what it would have put there."""
    state: dict[str, Any] = optimizer.state[parameter]
    if state.get(name) is None:
        state[name] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
    buffer: torch.Tensor = state[name]
    if buffer.stride() != parameter.stride():  # as after a checkpoint from a device with another layout
        state[name] = buffer = torch.empty_like(parameter, memory_format=torch.preserve_format).copy_(buffer)
    return buffer
