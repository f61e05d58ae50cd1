"""Schedules by name, for command lines, configs and study files: one grammar for all three.

| name | schedule |
|---|---|
| `constant`, `cosine`, `linear` | over the whole run |
| `step` | ÷ 10 at 50 % and 75 % of the run (Yun et al.) |
| `step:150,225/10` | ÷ 10 at these epochs; another divisor after the slash |
| `lr_80_120`, `wd_20_60_lr_40_60` | ÷ 10 at these epochs (Li, Lyu and Arora's labels) |
| `phases:0=0.4,5e-4;100=0.1,5e-4` | learning rate and weight decay from these epochs on, whatever the recipe's |
| `warmup:5(…)` | the inner one after 5 epochs of linear growth |
| `balanced(…)`, `exp(…)`, `texp(…)`, `texp_plus(…)`, `texp_minus(…)` | of `isogon.schedules`, from the inner one |

A new name is a line in one of the tables below.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from isogon.errors import ArgumentError
from isogon.schedules._curves import (
    Schedule,
    balanced,
    constant,
    cosine,
    from_label,
    linear,
    phases,
    step_decay,
    warmup,
)
from isogon.schedules._exponential import Exponential, exp_lr, texp, texp_minus, texp_plus

_NESTED = re.compile(r"(\w+)(?::(\d+(?:\.\d+)?))?\((.*)\)")
_PHASES, _PHASE = "phases:", re.compile("([^=,]+)=([^=,]+),([^=,]+)")
_STEP = "step:"
_LABEL = re.compile(r"(?:wd|lr)(?:_(?:wd|lr|\d+))+")
_MOST_EPOCHS = 1e9


class Rates(Protocol):
    """What a schedule needs of a recipe."""

    @property
    def lr(self) -> float: ...
    @property
    def weight_decay(self) -> float: ...
    @property
    def momentum(self) -> float: ...


@dataclass(frozen=True)
class _Run:
    """The run that a schedule is for; `argument` is the argument that holds the name, for messages."""

    rates: Rates
    epochs: float | None
    steps_per_epoch: float
    argument: str
    exponential: bool

    @property
    def steps(self) -> int:
        if self.epochs is None:
            name = self.argument.replace("schedule", "epochs")  # a flag where the schedule's name is one
            raise ArgumentError(name, "given for this schedule", None, "give the length of the run")
        return max(1, round(self.epochs * self.steps_per_epoch))

    def at(self, epoch: float) -> int:
        """The step at which an epoch starts."""
        if not abs(epoch) < _MOST_EPOCHS:
            raise ArgumentError(self.argument, "of epochs below 1e9", epoch, "count the epochs again")
        return round(epoch * self.steps_per_epoch)


# Over the whole run: name → schedule of the rates and the number of steps.
_WHOLE: dict[str, Callable[[_Run], Schedule]] = {
    "constant": lambda run: constant(run.rates.lr, run.rates.weight_decay),
    "step": lambda run: step_decay(
        run.rates.lr,
        run.rates.weight_decay,
        sorted({max(1, run.steps // 2), max(1, 3 * run.steps // 4)}),
    ),
    "cosine": lambda run: cosine(run.rates.lr, run.rates.weight_decay, run.steps),
    "linear": lambda run: linear(run.rates.lr, run.rates.weight_decay, run.steps),
}
# Around another one: name → schedule of the inner one and the run; `warmup` has a number too: see `_make_around`.
_AROUND: dict[str, Callable[[Schedule, _Run], Schedule]] = {
    "balanced": lambda inner, run: balanced(inner),
    "exp": lambda inner, run: exp_lr(inner, momentum=run.rates.momentum),
    "texp": lambda inner, run: texp(inner, momentum=run.rates.momentum),
    "texp_plus": lambda inner, run: texp_plus(inner, momentum=run.rates.momentum),
    "texp_minus": lambda inner, run: texp_minus(inner, momentum=run.rates.momentum),
}
# Those that have no weight decay.
_EXPONENTIAL = ("exp", "texp", "texp_plus", "texp_minus")


def from_name(
    name: str,
    rates: Rates,
    *,
    epochs: float | None,
    steps_per_epoch: float,
    argument: str = "schedule",
    exponential: bool = True,
) -> Schedule:
    """The schedule called `name` for a run of `epochs` times `steps_per_epoch` steps; `rates` may be a recipe.

    `argument` is how messages call the name; without `exponential`, schedules that have no weight decay are refused.

    >>> from isogon import Recipe
    >>> recipe = Recipe(lr=0.1, weight_decay=5e-4, batch_size=100, samples=1000)
    >>> step = from_name("step", recipe, epochs=4, steps_per_epoch=10)
    >>> [round(float(step.lr(t)), 6) for t in (0, 20, 30)]
    [0.1, 0.01, 0.001]
    >>> [round(float(from_name("step:1/4", recipe, epochs=4, steps_per_epoch=10).lr(t)), 6) for t in (9, 10)]
    [0.1, 0.025]
    """
    return _make(name, _Run(rates, epochs, steps_per_epoch, argument, exponential))


def _make(name: str, run: _Run) -> Schedule:
    nested = _NESTED.fullmatch(name)
    if nested:
        return _make_around(name, run, *nested.groups())
    if name in _WHOLE:
        return _WHOLE[name](run)
    if name.startswith(_STEP):
        return _steps(name, run)
    if name.startswith(_PHASES):
        return _phases(name, run)
    if _LABEL.fullmatch(name):
        rates = run.rates
        for epoch in re.findall(r"\d+", name):
            run.at(float(epoch))  # refuses one that is too large
        return from_label(name, lr=rates.lr, weight_decay=rates.weight_decay, steps_per_epoch=run.steps_per_epoch)
    raise _name_error(name, run)


def _make_around(name: str, run: _Run, outer: str, number: str | None, inner_name: str) -> Schedule:
    inner = _make(inner_name, run)
    if outer in _EXPONENTIAL and not run.exponential:
        cure = f"write {inner_name}, which makes the same networks"
        raise ArgumentError(run.argument, "one with weight decay here", name, cure)
    if isinstance(inner, Exponential):
        # It has no weight decay of its own, and only the driver knows how to train with it.
        raise ArgumentError(run.argument, "exponential on the outside alone", name, "write texp_plus(warmup:5(step))")
    if outer == "warmup" and number:
        return warmup(inner, run.at(float(number)))
    if outer in _AROUND and not number:
        return _AROUND[outer](inner, run)
    raise _name_error(name, run)


def _steps(name: str, run: _Run) -> Schedule:
    """`step:EPOCHS/DIVISOR`."""
    places, _, divisor_text = name.removeprefix(_STEP).partition("/")
    refusal = ArgumentError(
        run.argument, "step:EPOCHS/DIVISOR with rising epochs", name, "write step:150,225/10 for ÷ 10 at both"
    )
    try:
        epochs = [float(place) for place in places.split(",")]
        divisor = float(divisor_text) if divisor_text else 10.0
    except ValueError:
        raise refusal from None
    if not all(0 < epoch < _MOST_EPOCHS for epoch in epochs) or not 0 < divisor < math.inf:
        raise refusal
    milestones = [run.at(epoch) for epoch in epochs]
    if any(later <= earlier for earlier, later in zip([0, *milestones], milestones, strict=False)):
        raise refusal
    return step_decay(run.rates.lr, run.rates.weight_decay, milestones, divisor)


def phases_name(parts: Iterable[tuple[float, float, float]]) -> str:
    """The name of the schedule with these (epoch, η, λ).

    >>> phases_name([(0, 0.4, 5e-4), (100, 0.1, 0.0)])
    'phases:0=0.4,0.0005;100=0.1,0.0'
    """
    return _PHASES + ";".join(f"{epoch}={lr},{weight_decay}" for epoch, lr, weight_decay in parts)


def _phases(name: str, run: _Run) -> Schedule:
    parts = [_PHASE.fullmatch(part) for part in name.removeprefix(_PHASES).split(";")]
    try:
        numbers = [[float(number) for number in part.groups()] for part in parts if part]
        starts = [(run.at(epoch), lr, weight_decay) for epoch, lr, weight_decay in numbers]
    except (ValueError, OverflowError):
        starts = []
    if len(starts) < len(parts):
        raise _name_error(name, run)
    return phases(starts)


def _name_error(name: str, run: _Run) -> ArgumentError:
    whole = ", ".join(_WHOLE)
    *most, last = _AROUND
    around = f"{'(…), '.join(most)}(…) or {last}"
    return ArgumentError(
        run.argument,
        f"{whole} or like step:150,225/10, lr_80_120 or phases:0=0.4,5e-4;100=0.1,0, alone or inside warmup:5(…), "
        f"{around}(…)",
        name,
        "write step for ÷ 10 at half and three quarters of the run",
    )
