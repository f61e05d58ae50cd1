"""torch's Muon for the hidden matrices of a network and AdamW for all its other weights, as one optimizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from isogon.errors import ArgumentError


class MuonWithAdamW(torch.optim.Optimizer):
    """`torch.optim.Muon` and `torch.optim.AdamW` with one learning rate and one weight decay.

    Muon's updates are scaled to the size of AdamW's (`adjust_lr_fn="match_rms_adamw"`), so that both can have the same
    rates. `parts` are the two optimizers, which own the groups and states that are shown here: schedulers, checkpoints
    and `optim.drive` see one optimizer, `Monitor` measures each part by its own law.

    Args:
        matrices: the weights for Muon, for example those of `optim.hidden_matrices`, or groups of them.
        others: the weights for AdamW, or groups of them; none is fine.

    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
    >>> optimizer = MuonWithAdamW([model[0].weight], [model[0].bias, *model[1].parameters()], lr=0.1)
    >>> [len(group["params"]) for group in optimizer.param_groups]
    [1, 3]
    """

    def __init__(
        self,
        matrices: Any,
        others: Any,
        lr: float = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        betas: tuple[float, float] = (0.9, 0.95),
    ) -> None:
        first, rest = list(matrices), list(others)
        if not first:
            raise ArgumentError("matrices", "at least one weight", 0, "use AdamW for a network without hidden matrices")
        muon = torch.optim.Muon(
            first, lr=lr, weight_decay=weight_decay, momentum=momentum, adjust_lr_fn="match_rms_adamw"
        )
        adamw = [torch.optim.AdamW(rest, lr=lr, betas=betas, weight_decay=weight_decay)] if rest else []
        self.parts: tuple[torch.optim.Optimizer, ...] = (muon, *adamw)
        # torch's constructor takes over the groups, as the dictionaries that they are.
        super().__init__([group for part in self.parts for group in part.param_groups], {})
        self._complete = True
        self._share()

    def _share(self) -> None:
        """Let the parts have the groups and states of this optimizer."""
        first = 0
        for part in self.parts:
            last = first + len(part.param_groups)
            part.param_groups = self.param_groups[first:last]
            part.state = self.state
            first = last

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part in self.parts:
            part.step()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        for part in self.parts:
            part.zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if hasattr(self, "_complete"):  # nothing says which part should take it
            raise ArgumentError("param_group", "given when the optimizer is made", "one more", "make another one")
        super().add_param_group(param_group)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "parts": self.parts}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._complete = True
        self._share()

    def load_state_dict(self, state_dict: Any) -> None:
        super().load_state_dict(state_dict)
        self._share()
