"""Ordinary schedules in closed form: constant, stepwise, cosine, linear, warm-up, and joins of them.

A schedule is a frozen object with `.lr(step)` and `.weight_decay(step)`; a step is a number or an array of numbers,
counted from 0, and the answer has its shape. Past its end a schedule keeps its last value.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from isogon.errors import ArgumentError, check_number, check_whole

Floats = NDArray[np.float64]


class Schedule(Protocol):
    """What every schedule offers."""

    def lr(self, step: ArrayLike) -> Floats:
        """The learning rate at `step`."""

    def weight_decay(self, step: ArrayLike) -> Floats:
        """The weight decay at `step`."""


@dataclass(frozen=True)
class Phases:
    """Values that hold from their start step until the next phase begins."""

    starts: tuple[int, ...]
    lrs: tuple[float, ...]
    weight_decays: tuple[float, ...]

    def phase(self, step: ArrayLike) -> NDArray[np.int64]:
        """The index of the phase that `step` is in."""
        return np.searchsorted(np.array(self.starts[1:]), check_steps(step), side="right").astype(np.int64)

    def lr(self, step: ArrayLike) -> Floats:
        return np.array(self.lrs)[self.phase(step)]

    def weight_decay(self, step: ArrayLike) -> Floats:
        return np.array(self.weight_decays)[self.phase(step)]


@dataclass(frozen=True)
class Ramp:
    """A learning rate that runs from one value to another over `steps`, in a straight line or half a cosine."""

    first: float
    last: float
    decay: float
    steps: int
    curved: bool

    def lr(self, step: ArrayLike) -> Floats:
        done = np.clip(check_steps(step) / self.steps, 0.0, 1.0)
        if self.curved:
            done = (1 - np.cos(np.pi * done)) / 2
        # The ends are exact: first·1 + last·0 and the reverse.
        return np.asarray(self.first * (1 - done) + self.last * done)

    def weight_decay(self, step: ArrayLike) -> Floats:
        return np.full(np.shape(step), self.decay)


@dataclass(frozen=True)
class Warmup:
    """A schedule whose learning rate is first held back by a factor that rises in a straight line to 1."""

    schedule: Schedule
    steps: int
    start: float

    def lr(self, step: ArrayLike) -> Floats:
        done = np.clip(check_steps(step) / self.steps, 0.0, 1.0)
        return np.asarray(self.schedule.lr(step) * (self.start + (1 - self.start) * done))

    def weight_decay(self, step: ArrayLike) -> Floats:
        return self.schedule.weight_decay(step)


@dataclass(frozen=True)
class Join:
    """Schedules one after another, each counting its steps from its own start."""

    schedules: tuple[Schedule, ...]
    starts: tuple[int, ...]

    def lr(self, step: ArrayLike) -> Floats:
        return self._pick(step, "lr")

    def weight_decay(self, step: ArrayLike) -> Floats:
        return self._pick(step, "weight_decay")

    def _pick(self, step: ArrayLike, quantity: str) -> Floats:
        steps = check_steps(step)
        which = np.searchsorted(np.array(self.starts[1:]), steps, side="right")
        out = np.empty_like(steps)
        for index, (schedule, start) in enumerate(zip(self.schedules, self.starts, strict=True)):
            here = which == index
            out[here] = getattr(schedule, quantity)(steps[here] - start)
        return out


@dataclass(frozen=True)
class Balanced:
    """A schedule of the same ηλ at a constant ratio η/λ."""

    schedule: Schedule
    ratio: float

    def lr(self, step: ArrayLike) -> Floats:
        return np.sqrt(self._intrinsic(step) * self.ratio)

    def weight_decay(self, step: ArrayLike) -> Floats:
        return np.sqrt(self._intrinsic(step) / self.ratio)

    def _intrinsic(self, step: ArrayLike) -> Floats:
        lr, decay = self.schedule.lr(step), self.schedule.weight_decay(step)
        if np.any((lr > 0) & (decay == 0)):
            raise _balance_error()
        return lr * decay


def _balance_error() -> ArgumentError:
    return ArgumentError(
        "schedule", "one with weight decay wherever it has a learning rate", "a weight decay of 0", "use it unbalanced"
    )


def constant(lr: float, weight_decay: float) -> Phases:
    """η and λ that never change."""
    return phases([(0, lr, weight_decay)])


def step_decay(lr: float, weight_decay: float, milestones: Sequence[int], factor: float = 10.0) -> Phases:
    """η divided by `factor` at each of `milestones` (steps); λ constant.

    >>> step_decay(0.1, 5e-4, [100, 200], 10).lr([0, 99, 100, 250]).tolist()
    [0.1, 0.1, 0.01, 0.001]
    """
    check_number("factor", factor, low=1e-6, high=1e6, cure="a factor of 10 divides by 10")
    starts = [0, *milestones]
    if any(later <= earlier for earlier, later in itertools.pairwise(starts)):
        raise ArgumentError("milestones", "increasing steps above 0", list(milestones), "put them in order")
    return phases([(start, lr / factor**index, weight_decay) for index, start in enumerate(starts)])


def phases(parts: Iterable[tuple[int, float, float]]) -> Phases:
    """Any sequence of (start step, η, λ), the first at step 0; Li, Lyu and Arora's random schedules are such."""
    rows = [(check_whole("start", start, low=0, cure="phases start at whole steps"), lr, wd) for start, lr, wd in parts]
    starts = [start for start, _, _ in rows]
    if not starts or starts[0] != 0 or any(later <= earlier for earlier, later in itertools.pairwise(starts)):
        raise ArgumentError("starts", "increasing and begin at 0", starts, "order the phases by their first step")
    return Phases(
        tuple(starts),
        tuple(_check_lr(lr) for _, lr, _ in rows),
        tuple(_check_weight_decay(decay) for _, _, decay in rows),
    )


def cosine(lr: float, weight_decay: float, steps: int, final_lr: float = 0.0) -> Ramp:
    """η_t = η_T + (η − η_T)(1 + cos(πt/T))/2 over T = `steps`, η_T = `final_lr`; λ constant.

    >>> cosine(0.2, 5e-4, 100).lr([0, 50, 100]).round(6).tolist()
    [0.2, 0.1, 0.0]
    """
    return _ramp(lr, final_lr, weight_decay, steps, curved=True)


def linear(lr: float, weight_decay: float, steps: int, final_lr: float = 0.0) -> Ramp:
    """η in a straight line from `lr` to `final_lr` over `steps`; λ constant."""
    return _ramp(lr, final_lr, weight_decay, steps, curved=False)


def warmup(schedule: Schedule, steps: int, start: float = 0.0) -> Warmup:
    """`schedule` with its learning rate multiplied by a factor that rises from `start` to 1 over the first `steps`."""
    check_whole("steps", steps, cure="a warm-up takes at least one step")
    check_number("start", start, low=0, high=1, cure="give the share of the learning rate at step 0")
    return Warmup(schedule, steps, start)


def join(schedules: Sequence[Schedule], boundaries: Sequence[int]) -> Join:
    """`schedules` one after another; schedule i + 1 starts, at its own step 0, at `boundaries[i]`."""
    starts = [0, *boundaries]
    if len(starts) != len(schedules) or any(b <= a for a, b in itertools.pairwise(starts)):
        raise ArgumentError(
            "boundaries",
            f"{len(schedules) - 1} increasing steps above 0",
            list(boundaries),
            "one between each two",
        )
    return Join(tuple(schedules), tuple(starts))


def balanced(schedule: Schedule) -> Balanced:
    """`schedule` with every change of η shared with λ, so that the norm at equilibrium stays where step 0 puts it.

    η'_t = √(x_t η₀/λ₀), λ'_t = √(x_t λ₀/η₀) with x_t = η_t λ_t: where η would be divided by κ, both are divided by √κ.
    The same networks as rescaling the weights at the drop (Wan et al.), without touching a tensor.
    """
    lr, decay = float(schedule.lr(0)), float(schedule.weight_decay(0))
    if lr <= 0 or decay <= 0:
        raise ArgumentError(
            "schedule", "one with a learning rate and weight decay above 0 at step 0", (lr, decay), "start above 0"
        )
    result = Balanced(schedule, lr / decay)
    result.lr(getattr(schedule, "starts", (0,)))  # a phase without weight decay is refused here, not when it comes
    return result


def from_label(label: str, *, lr: float, weight_decay: float, steps_per_epoch: float) -> Phases:
    """Li, Lyu and Arora's names: `wd_x_y_lr_z_u` divides λ by 10 at epochs x, y and η by 10 at epochs z, u.

    Either part may be left out or longer; an epoch named twice divides twice, and epoch 0 divides the start.
    """
    refusal = ArgumentError(
        "label", "like wd_20_60_lr_40_60, epochs not falling", label, "write lr_80_120 for a plain step decay"
    )
    drops: dict[str, list[float]] = {"wd": [], "lr": []}
    current: list[float] | None = None
    for part in label.split("_"):
        if part in drops:
            current = drops[part]
        elif current is None or not part.isdecimal() or (current and float(part) < current[-1]):
            raise refusal
        else:
            current.append(float(part))
    starts = sorted({0, *(round(epoch * steps_per_epoch) for epochs in drops.values() for epoch in epochs)})

    def after(kind: str, start: int) -> int:
        return sum(round(epoch * steps_per_epoch) <= start for epoch in drops[kind])

    return phases([(s, lr / 10 ** after("lr", s), weight_decay / 10 ** after("wd", s)) for s in starts])


def _ramp(lr: float, final_lr: float, weight_decay: float, steps: int, *, curved: bool) -> Ramp:
    check_whole("steps", steps, cure="count the steps of the whole run")
    return Ramp(_check_lr(lr), _check_lr(final_lr, "final_lr"), _check_weight_decay(weight_decay), steps, curved)


def _check_lr(value: float, name: str = "lr") -> float:
    return check_number(name, value, low=0, cure="give the learning rate")


def _check_weight_decay(value: float) -> float:
    return check_number("weight_decay", value, low=0, cure="give 0 for no weight decay")


def check_steps(step: ArrayLike) -> Floats:
    """`step` as an array of finite numbers from 0 on."""
    steps = np.asarray(step, dtype=np.float64)
    if np.any(~(steps >= 0)) or np.any(np.isinf(steps)):
        raise ArgumentError("step", "finite and at least 0", step, "steps count from 0")
    return steps
