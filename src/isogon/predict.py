"""What a whole run will do: norm, angles and effective rates, predicted from recipe, schedule and first norm.

The norm follows, with y = ‖w‖⁴ for coupled weight decay (‖w‖² for decoupled), r_t = 4x'_t (2x_t) and s_t its source,

    y_{t+1} = y_t e^(−r_t) + s_t (1 − e^(−r_t))/r_t,        s_t = 2η_t²L/(1−μ)²  (decoupled: η_t²L),

the exact solution over one step of the relaxation that the theory sheet iterates; its fixed point is the equilibrium of
`theory.equilibrium` to first order in ηλ. Directions turn at the rate of equilibrium times y*/y.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from isogon.errors import ArgumentError, check_number, check_whole
from isogon.recipe import Recipe
from isogon.schedules.curves import Floats, Schedule
from isogon.theory.equilibrium import norm_power
from isogon.theory.motion import COUPLED, law, tuning_rate

if TYPE_CHECKING:
    import pandas as pd

# Stands for "no weight decay" where a limit x → 0 is wanted; the law is accurate down to it.
_TINY_RATE = 1e-12
_MOST_STEPS = 10**8


@dataclass(frozen=True)
class Curves:
    """Predicted values at the end of each epoch; entry 0 is the start, where no angle exists yet (NaN).

    Where the unit gradient was not given, norms are in units of the first equilibrium norm and the effective rates in
    units to match; angles do not depend on it.
    """

    epoch: Floats
    step: Floats
    lr: Floats
    weight_decay: Floats
    norm: Floats
    step_angle: Floats
    epoch_angle: Floats
    effective_lr: Floats
    effective_lr_epoch: Floats
    #: step angle over the law's at the rates of that step: 1 in equilibrium, NaN without weight decay
    settled: Floats

    def to_frame(self) -> pd.DataFrame:
        """The curves as a pandas table, one row an epoch."""
        import pandas as pd

        return pd.DataFrame({field.name: getattr(self, field.name) for field in fields(self)})


def curves(
    recipe: Recipe,
    schedule: Schedule | None = None,
    *,
    initial_norm: float | None = None,
    unit_grad_sq: float | None = None,
) -> Curves:
    """Predict a run of `recipe.epochs` epochs under `schedule` (None: the recipe's constant rates).

    `initial_norm` is ‖w₀‖ (None: the first equilibrium's). `unit_grad_sq` is L = E‖g‖²‖w‖² for coupled weight decay,
    and for the others the squared norm that independent unit updates would have: the number of parameters for `adamw`.
    None takes the L whose equilibrium under the recipe's rates has norm 1.

    >>> from isogon.schedules import step_decay
    >>> recipe = Recipe(lr=0.1, weight_decay=5e-4, batch_size=128, samples=50_000, epochs=200)
    >>> run = curves(recipe, step_decay(0.1, 5e-4, [39_062, 58_594]), initial_norm=2)
    >>> run.epoch_angle[[10, 99, 150, 200]].round(3).tolist()
    [0.597, 0.599, 0.179, 0.021]
    """
    if recipe.epochs is None:
        raise ArgumentError("epochs", "set in the recipe", None, "say how many epochs the run has")
    steps_per_epoch = recipe.steps_per_epoch
    total = check_whole(
        "epochs · samples / batch_size",
        max(1, round(recipe.epochs * steps_per_epoch)),
        high=_MOST_STEPS,
        cure="predict fewer steps",
    )
    ends = _epoch_ends(recipe.epochs, steps_per_epoch, total)
    steps = np.arange(total)
    if schedule is None:
        lr, decay = np.full(total, recipe.lr), np.full(total, recipe.weight_decay)
    else:
        lr, decay = schedule.lr(steps), schedule.weight_decay(steps)

    power = norm_power(recipe.optimizer)
    energy, start = _scales(recipe, unit_grad_sq, initial_norm)
    source = _source(recipe.optimizer, energy, lr, recipe.momentum)
    y = _relax(start**power, power * _forgetting(recipe, lr, decay), source)
    # x'·y*/y: the share of the direction forgotten in each step, x' itself in equilibrium
    forgotten = source / (power * y[:-1])
    step_angle, epoch_angle = _angles(recipe, lr * decay, forgotten, ends)
    with np.errstate(divide="ignore", invalid="ignore"):
        settled = np.sqrt(np.where(lr * decay > 0, forgotten / _forgetting(recipe, lr, decay), np.nan))

    norm = y[ends] ** (1 / power)
    shown = np.maximum(ends - 1, 0)  # an epoch ends with its last step
    effective = lr[shown] / norm**2
    return Curves(
        epoch=ends / steps_per_epoch,
        step=ends.astype(np.float64),
        lr=lr[shown],
        weight_decay=decay[shown],
        norm=norm,
        step_angle=step_angle,
        epoch_angle=epoch_angle,
        effective_lr=effective,
        effective_lr_epoch=effective * steps_per_epoch,
        settled=settled[shown],
    )


def _epoch_ends(epochs: float, steps_per_epoch: float, total: int) -> NDArray[np.int64]:
    """0, the last step of every epoch, and `total`; an epoch shorter than a step has no end of its own."""
    whole = np.rint(np.arange(math.floor(epochs) + 1) * steps_per_epoch).astype(np.int64)
    return np.unique(np.minimum(np.append(whole, total), total))


def _scales(recipe: Recipe, unit_grad_sq: float | None, initial_norm: float | None) -> tuple[float, float]:
    """(L, ‖w₀‖), with the defaults that `curves` promises."""
    for name, value in (("unit_grad_sq", unit_grad_sq), ("initial_norm", initial_norm)):
        if value is not None:
            check_number(name, value, low=0, low_open=True, cure="measure it, or leave it out")
        elif recipe.weight_decay == 0:
            raise ArgumentError(name, "given without weight decay", None, "there is no equilibrium to count from")
    if recipe.weight_decay == 0:
        assert unit_grad_sq is not None
        assert initial_norm is not None
        return unit_grad_sq, initial_norm
    # y* = L·unit for the recipe's own rates
    unit = float(
        _source(recipe.optimizer, 1.0, np.array(recipe.lr), recipe.momentum)
        / (norm_power(recipe.optimizer) * _forgetting(recipe, recipe.lr, recipe.weight_decay))
    )
    energy = 1 / unit if unit_grad_sq is None else unit_grad_sq
    return energy, (energy * unit) ** (1 / norm_power(recipe.optimizer)) if initial_norm is None else initial_norm


def _forgetting(recipe: Recipe, lr: Any, weight_decay: Any) -> Any:
    return tuning_rate(recipe.optimizer, lr, weight_decay, recipe.momentum)


def _source(optimizer: str, energy: float, lr: Floats, momentum: float) -> Floats:
    return np.asarray(2 * energy * (lr / (1 - momentum)) ** 2 if optimizer in COUPLED else energy * lr**2)


def _relax(start: float, rate: Floats, source: Floats) -> Floats:
    """y₀ … y_T of y ← y e^(−r) + s (1 − e^(−r))/r."""
    kept = np.exp(-rate)
    gained = np.divide(-np.expm1(-rate), rate, out=np.ones_like(rate), where=rate > 0) * source
    y, out = start, [start]
    for keep, gain in zip(kept.tolist(), gained.tolist(), strict=True):
        y = y * keep + gain
        out.append(y)
    return np.array(out)


def _angles(recipe: Recipe, intrinsic_lr: Floats, forgotten: Floats, ends: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """Step angle at the end of each epoch and angle over it: the law of equilibrium, its exponent scaled by y*/y.

    With x̄ the mean of ηλ over the epoch, 1 − cos Δ = (1 − ρ₁(x̄))·(y*/y) and cos Δθ = ρ_k(x̄)^(mean of y*/y).
    """
    step_angle, epoch_angle = np.full(len(ends), np.nan), np.full(len(ends), np.nan)
    known: dict[float, tuple[float, float]] = {}
    for index, (first, last) in enumerate(itertools.pairwise(ends), start=1):
        x = max(float(np.mean(intrinsic_lr[first:last])), _TINY_RATE)
        if x not in known:
            known[x] = _turning(recipe, x)
        per_step, per_epoch = known[x]
        loss = min(1.0, per_step * forgotten[last - 1])  # a step at right angles to w never turns it by more than 90°
        step_angle[index] = 2 * math.asin(math.sqrt(loss / 2))
        loss = -math.expm1(-per_epoch * float(np.mean(forgotten[first:last])))
        epoch_angle[index] = 2 * math.asin(math.sqrt(loss / 2))
    return step_angle, epoch_angle


def _turning(recipe: Recipe, x: float) -> tuple[float, float]:
    """(1 − ρ₁)/x' and −ln ρ_k/x' at intrinsic learning rate x."""
    motion = law(recipe.optimizer, lr=1.0, weight_decay=x, momentum=recipe.momentum, beta2=recipe.beta2)
    share = _forgetting(recipe, 1.0, x)
    # An underdamped motion can have ρ_k ≤ 0: as good as a right angle.
    lost = min(float(motion.decorrelation(recipe.steps_per_epoch)), 1 - 1e-15)
    return motion.first / share, -math.log1p(-lost) / share
