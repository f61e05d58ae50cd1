"""Schedules by name, for configs that must fit in a file.

| name | schedule |
|---|---|
| `constant`, `cosine`, `linear` | over the whole run |
| `step` | ÷ 10 at 50 % and 75 % of the run (Yun et al.) |
| `lr_80_120`, `wd_20_60_lr_40_60` | ÷ 10 at these epochs (Li, Lyu and Arora's labels) |
| `phases:0=0.4,5e-4;100=0.1,5e-4` | learning rate and weight decay from these epochs on, whatever the recipe's |
| `warmup:5(…)` | the inner one after 5 epochs of linear growth |
| `balanced(…)`, `exp(…)`, `texp(…)`, `texp_plus(…)`, `texp_minus(…)` | of `isogon.schedules`, from the inner one |
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from isogon import schedules
from isogon.errors import ArgumentError
from isogon.optim import Exponential
from isogon.recipe import Recipe
from isogon.schedules import Schedule

_NESTED = re.compile(r"(\w+)(?::(\d+(?:\.\d+)?))?\((.*)\)")
_PHASES, _PHASE = "phases:", re.compile("([^=,]+)=([^=,]+),([^=,]+)")
_LABEL = re.compile(r"(?:wd|lr)(?:_(?:wd|lr|\d+))+")
_MADE_WITH_MOMENTUM: dict[str, Callable[..., Schedule]] = {
    "exp": schedules.exp_lr,
    "texp": schedules.texp,
    "texp_plus": schedules.texp_plus,
    "texp_minus": schedules.texp_minus,
}


def schedule_of(name: str, recipe: Recipe, *, epochs: int, steps_per_epoch: int) -> Schedule:
    """The schedule called `name` for a run of `epochs` times `steps_per_epoch` steps.

    >>> recipe = Recipe(lr=0.1, weight_decay=5e-4, batch_size=100, samples=1000)
    >>> step = schedule_of("step", recipe, epochs=4, steps_per_epoch=10)
    >>> [round(float(step.lr(t)), 6) for t in (0, 20, 30)]
    [0.1, 0.01, 0.001]
    """
    nested = _NESTED.fullmatch(name)
    if nested:
        outer, number, inner_name = nested.groups()
        inner = schedule_of(inner_name, recipe, epochs=epochs, steps_per_epoch=steps_per_epoch)
        if isinstance(inner, Exponential):
            # It has no weight decay of its own, and only the driver knows how to train with it.
            raise ArgumentError("schedule", "exponential on the outside alone", name, "write texp_plus(warmup:5(step))")
        if outer == "warmup" and number:
            return schedules.warmup(inner, round(float(number) * steps_per_epoch))
        if outer == "balanced" and not number:
            return schedules.balanced(inner)
        if outer in _MADE_WITH_MOMENTUM and not number:
            return _MADE_WITH_MOMENTUM[outer](inner, momentum=recipe.momentum)
        raise _unknown(name)
    lr, weight_decay, steps = recipe.lr, recipe.weight_decay, epochs * steps_per_epoch
    if name == "constant":
        return schedules.constant(lr, weight_decay)
    if name == "step":
        return schedules.step_decay(lr, weight_decay, sorted({max(1, steps // 2), max(1, 3 * steps // 4)}))
    if name == "cosine":
        return schedules.cosine(lr, weight_decay, steps)
    if name == "linear":
        return schedules.linear(lr, weight_decay, steps)
    if name.startswith(_PHASES):
        return _phases(name, steps_per_epoch)
    if _LABEL.fullmatch(name):
        return schedules.from_label(name, lr=lr, weight_decay=weight_decay, steps_per_epoch=steps_per_epoch)
    raise _unknown(name)


def phases_name(parts: Iterable[tuple[float, float, float]]) -> str:
    """The name of the schedule with these (epoch, η, λ).

    >>> phases_name([(0, 0.4, 5e-4), (100, 0.1, 0.0)])
    'phases:0=0.4,0.0005;100=0.1,0.0'
    """
    return _PHASES + ";".join(f"{epoch}={lr},{weight_decay}" for epoch, lr, weight_decay in parts)


def _phases(name: str, steps_per_epoch: int) -> Schedule:
    parts = [_PHASE.fullmatch(part) for part in name.removeprefix(_PHASES).split(";")]
    try:
        numbers = [[float(number) for number in part.groups()] for part in parts if part]
        found = [(round(epoch * steps_per_epoch), lr, weight_decay) for epoch, lr, weight_decay in numbers]
    except (ValueError, OverflowError):
        found = []
    if len(found) < len(parts):
        raise _unknown(name)
    return schedules.phases(found)


def _unknown(name: str) -> ArgumentError:
    return ArgumentError(
        "schedule",
        "constant, step, cosine, linear or like lr_80_120 or phases:0=0.4,5e-4;100=0.1,0, alone or inside warmup:5(…), "
        "balanced(…), exp(…), texp(…), texp_plus(…) or texp_minus(…)",
        name,
        "write step for Yun's protocol",
    )
