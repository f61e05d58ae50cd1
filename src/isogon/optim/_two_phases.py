"""Li, Lyu and Arora's two phases (section 5.3): reach equilibrium, then decay the rate and drop weight decay."""

from __future__ import annotations

from typing import Any

import torch

from isogon.dynamics import Monitor
from isogon.errors import ArgumentError, check_number, check_whole
from isogon.optim._driver import drive
from isogon.schedules import constant, phases


def two_phase(
    optimizer: torch.optim.Optimizer,
    *,
    lr: float,
    weight_decay: float,
    factor: float = 10.0,
    at: int | None = None,
    monitor: Monitor | None = None,
    ask_every: int = 100,
) -> TwoPhase:
    """Train at η = `lr`, λ = `weight_decay`; at the switch divide η by `factor` and set λ to 0 for the rest of the run.

    The switch comes at step `at`, or when `monitor` declares all its invariant weights together (layer `all`) in
    equilibrium, which is asked for every `ask_every` steps. Only ηλ of the first phase matters for the result.
    """
    if (at is None) == (monitor is None):
        raise ArgumentError("at", "given, or else monitor", (at, monitor), "choose one of the two")
    if at is not None:
        check_whole("at", at, cure="count the steps of the first phase")
    check_number("factor", factor, low=1, low_open=True, cure="10 divides the learning rate by 10")
    check_whole("ask_every", ask_every, cure="100 asks every hundred steps")
    return TwoPhase(optimizer, lr, weight_decay, factor, at, monitor, ask_every)


class TwoPhase:
    """What `two_phase` returns; call `.step()` after each step of the optimizer."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        lr: float,
        weight_decay: float,
        factor: float,
        at: int | None,
        monitor: Monitor | None,
        ask_every: int,
    ) -> None:
        self._rates = (lr, weight_decay, factor)
        self._monitor, self._ask_every = monitor, ask_every
        #: the step from which on the second phase holds; None while it is not decided
        self.switch = at
        self.driver = drive(optimizer, constant(lr, weight_decay))
        self._use_switch()

    def step(self) -> None:
        """Move to the next step; switch when it is time."""
        before = self.driver.last_epoch
        self.driver.step()
        now = self.driver.last_epoch
        if self.switch is None and now != before and now % self._ask_every == 0 and self._in_equilibrium():
            self.switch = now
            self._use_switch()

    def state_dict(self) -> dict[str, Any]:
        return {"switch": self.switch, "driver": self.driver.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.switch = state_dict["switch"]
        self._use_switch()
        self.driver.load_state_dict(state_dict["driver"])

    def _in_equilibrium(self) -> bool:
        assert self._monitor is not None
        records = self._monitor.records
        joint = records[records["layer"] == "all"]
        return not joint.empty and bool(joint["in_equilibrium"].iloc[-1])

    def _use_switch(self) -> None:
        if self.switch is None:
            return
        lr, weight_decay, factor = self._rates
        self.driver.change(phases([(0, lr, weight_decay), (self.switch, lr / factor, 0.0)]))
