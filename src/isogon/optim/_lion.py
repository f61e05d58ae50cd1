"""Lion (Chen et al., Symbolic Discovery of Optimization Algorithms): the sign of an average, and decoupled decay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from isogon.errors import ArgumentError, check_number


class Lion(torch.optim.Optimizer):
    """w ← (1 − ηλ) w − η sign(β₁ m + (1 − β₁) g), then m ← β₂ m + (1 − β₂) g.

    η is `lr`, λ `weight_decay`, β₁, β₂ `betas`, m the state `exp_avg`. torch has no Lion; this one has torch's habits:
    groups, closures, a learning rate that may be a tensor, and steps that a CUDA graph can hold.

    >>> weight = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
    >>> optimizer = Lion([weight], lr=0.25, weight_decay=0.0)
    >>> (3 * weight[0]).backward()
    >>> optimizer.step()
    >>> weight.tolist()
    [0.75, -2.0]
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        check_number("lr", float(lr), low=0, cure="a third to a tenth of AdamW's is usual")
        check_number("weight_decay", weight_decay, low=0, cure="three to ten times AdamW's is usual")
        if len(betas) != 2:
            raise ArgumentError("betas", "two numbers", betas, "the usual are (0.9, 0.99)")
        for beta in betas:
            check_number("betas", beta, low=0, high=1, high_open=True, cure="the usual are (0.9, 0.99)")
        super().__init__(params, {"lr": lr, "betas": tuple(betas), "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            # Tensors of one kind at a time, as the operations on lists want them.
            kinds: dict[tuple[torch.device, torch.dtype], list[tuple[Tensor, Tensor]]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    kind = parameter.device, parameter.dtype
                    kinds.setdefault(kind, []).append((parameter, parameter.grad))
            for pairs in kinds.values():
                self._update([parameter for parameter, _ in pairs], [gradient for _, gradient in pairs], group)
        return loss

    def _update(self, parameters: list[Tensor], gradients: list[Tensor], group: dict[str, Any]) -> None:
        lr, (beta1, beta2) = group["lr"], group["betas"]
        averages = []
        for parameter in parameters:
            state = self.state[parameter]
            if "exp_avg" not in state:
                state["exp_avg"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
            averages.append(state["exp_avg"])
        updates = torch._foreach_lerp(averages, gradients, 1 - beta1)
        torch._foreach_sign_(updates)
        if isinstance(lr, Tensor):
            torch._foreach_mul_(updates, lr)
            torch._foreach_mul_(parameters, 1 - lr * group["weight_decay"])
            torch._foreach_sub_(parameters, updates)
        else:
            torch._foreach_mul_(parameters, 1 - lr * group["weight_decay"])
            torch._foreach_add_(parameters, updates, alpha=-lr)
        torch._foreach_lerp_(averages, gradients, 1 - beta2)
