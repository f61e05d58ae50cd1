"""What the monitor reads from an optimizer: its kind, a group's settings, momentum buffers, and skipped steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import is_, itemgetter
from typing import Any

import torch

from isogon.errors import ArgumentError
from isogon.recipe import kind_of_optimizer, read_group

_BUFFER = itemgetter("momentum_buffer")


@dataclass(frozen=True)
class Settings:
    """One parameter group's settings at one step, read without waiting for the device.

    `kind` is a name of `theory.RULES`, or None where no law is known.
    """

    kind: str | None
    lr: float | torch.Tensor
    weight_decay: float
    momentum: float
    beta2: float | None
    dampening: float
    maximize: bool

    def on_host(self) -> Settings:
        """The same with every number on the host."""
        return replace(self, lr=float(self.lr)) if isinstance(self.lr, torch.Tensor) else self


def optimizer_kind(optimizer: torch.optim.Optimizer) -> str | None:
    """isogon's name for the optimizer (Nesterov is a matter of the group), None where no law is known."""
    try:
        return kind_of_optimizer(optimizer)
    except ArgumentError:
        return None


def copy_group(group: Mapping[str, Any]) -> dict[str, Any]:
    """The group as it is now, for `group_settings` later; a learning rate on a device is copied there, not read."""
    copy = {**group}
    lr = copy.get("lr")
    if isinstance(lr, torch.Tensor):  # schedulers change it in place
        copy["lr"] = lr.detach().clone()
    return copy


def group_settings(kind: str | None, group: Mapping[str, Any]) -> Settings:
    """The settings of a `copy_group` of an optimizer of this `kind`."""
    read = read_group(kind, group)
    on_device = isinstance(read.lr, torch.Tensor) and read.lr.device.type != "cpu"
    return Settings(
        kind=read.optimizer,
        lr=read.lr if on_device else float(read.lr),
        weight_decay=read.weight_decay,
        momentum=read.momentum,
        beta2=read.beta2,
        dampening=read.dampening,
        maximize=read.maximize,
    )


_NAMES_OF_SETTINGS = {
    "kind": "optimizers",
    "lr": "learning rates",
    "weight_decay": "weight decays",
    "momentum": "momenta",
    "beta2": "β₂",
}


def describe_difference(settings: Mapping[str, Settings]) -> str | None:
    """In what the settings of some weights differ, with an example of each; None where they are the same.

    >>> of = lambda decay: Settings("adamw", 1e-3, decay, 0.9, 0.99, 0.0, False)
    >>> describe_difference({"embed": of(0.1), "o": of(0.1), "bias": of(0.0)})
    'different weight decays (0.1 for embed, 0 for bias)'
    """
    for name, plural in _NAMES_OF_SETTINGS.items():
        examples: dict[Any, str] = {}
        for weight, of_weight in settings.items():
            value = getattr(of_weight.on_host(), name)
            examples.setdefault(
                value, f"{value:g} for {weight}" if isinstance(value, float) else f"{value} for {weight}"
            )
        if len(examples) > 1:
            more = f" and {len(examples) - 3} more" if len(examples) > 3 else ""
            return f"different {plural} ({', '.join(list(examples.values())[:3])}{more})"
    return None


class MomentumBuffers:
    """The heavy-ball buffers v of `parameters`, looked up again only where the optimizer has other states."""

    def __init__(self, optimizer: torch.optim.Optimizer, parameters: Sequence[torch.Tensor]) -> None:
        self._optimizer, self._parameters = optimizer, parameters
        self._known: list[dict[str, Any]] = []
        self._states: list[dict[str, Any]] = []

    def now(self) -> list[torch.Tensor | None]:
        """One entry per parameter, None where it has no buffer; empty while none has."""
        states = list(self._optimizer.state.values())
        # By identity throughout: comparing states would compare tensors, and hashing a tensor is slow.
        if len(states) != len(self._known) or not all(map(is_, states, self._known)):
            by_parameter = {id(p): state for p, state in self._optimizer.state.items()}
            self._known, self._states = states, [by_parameter.get(id(p), {}) for p in self._parameters]
        try:
            buffers = [*map(_BUFFER, self._states)]  # a loop in Python would take several times as long
        except KeyError:
            buffers = [state.get("momentum_buffer") for state in self._states]
        return buffers if any(v is not None for v in buffers) else []
