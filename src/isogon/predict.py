"""What a whole run will do: norm, angles and effective rates, predicted from recipe, schedule and first norm.

The norm follows, with y = ‖w‖⁴ for coupled weight decay (‖w‖² for decoupled), r_t = 4x'_t (2x_t) and s_t its source,

    y_{t+1} = y_t e^(−r_t) + s_t (1 − e^(−r_t))/r_t,        s_t = 2η_t²L/(1−μ)²  (decoupled: η_t²L),

the exact solution over one step of the relaxation in docs/theory.md; its fixed point is the equilibrium of
`theory.equilibrium` to first order in ηλ. Directions turn at the rate of equilibrium times y*/y.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from isogon.errors import ArgumentError, check_number, check_whole
from isogon.recipe import Recipe
from isogon.schedules import Floats, Schedule, constant
from isogon.theory import law, norm_power, rule_of, tuning_rate

if TYPE_CHECKING:
    import pandas as pd

# Stands for "no weight decay" where a limit x → 0 is wanted; the law is accurate down to it.
_TINY_RATE = 1e-12
#: the most rows and steps that are predicted, in half a second and some 100 MB
_MOST_EPOCHS, _MOST_STEPS = 10_000, 10**12
# Blocks of steps into which a run is cut, and different rates at which the law itself is evaluated.
_MOST_BLOCKS, _MOST_LAWS = 200_000, 1000


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
        """The curves as a pandas table, one row per epoch."""
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
        raise ArgumentError("epochs", "set in the recipe", None, "give the number of epochs of the run")
    check_number("epochs", recipe.epochs, high=_MOST_EPOCHS, cure="predict a part of the run")
    steps_per_epoch = recipe.steps_per_epoch
    total = check_whole(
        "epochs · samples / batch_size",
        max(1, round(recipe.epochs * steps_per_epoch)),
        high=_MOST_STEPS,
        cure="predict fewer steps",
    )
    ends = _epoch_ends(recipe.epochs, steps_per_epoch, total)
    recipe = recipe.in_convention(None)
    if schedule is None:
        schedule = constant(recipe.lr, recipe.weight_decay)
    try:
        with np.errstate(all="ignore"):  # what leaves the range of floats is refused below
            run = _predict(recipe, schedule, ends, *_scales(recipe, unit_grad_sq, initial_norm))
    except (OverflowError, ZeroDivisionError):
        run = None
    if run is None or not np.isfinite([run.norm, run.effective_lr]).all() or not (run.norm > 0).all():
        rule = "such that norms stay within the range of floating point"
        raise ArgumentError("lr, weight_decay and norms", rule, recipe.to_dict(), "use smaller numbers")
    return run


def _predict(recipe: Recipe, schedule: Schedule, ends: NDArray[np.int64], energy: float, start: float) -> Curves:
    """The curves at `ends`, from ‖w₀‖ = `start` and L = `energy`.

    The run is cut into blocks of n steps, in each of which the rates are those of its middle: the relaxation over a
    block is then exact, y ← y e^(−rn) + s (1 − e^(−rn))/r. A run of up to `_MOST_BLOCKS` steps has blocks of one step.
    """
    power = norm_power(recipe.optimizer)
    edges = _block_edges(ends, schedule)
    length = np.diff(edges).astype(np.float64)
    middle = edges[:-1] + (length - 1) / 2
    lr, decay = schedule.lr(middle), schedule.weight_decay(middle)
    rate = power * np.asarray(_tuning_rate(recipe, lr, decay))
    source = _source(recipe.optimizer, energy, lr, recipe.momentum)
    y = _relax(start**power, rate, source, length)
    # x'·y*/y: the share of the direction forgotten in each step, x' itself in equilibrium
    forgotten = source / (power * _relax_within(y[:-1], rate, source, (length - 1) / 2))

    shown = np.maximum(ends - 1, 0)  # an epoch ends with its last step
    last = np.searchsorted(edges, shown, side="right") - 1
    shown_lr, shown_decay = schedule.lr(shown), schedule.weight_decay(shown)
    y_last = _relax_within(y[last], rate[last], source[last], (shown - edges[last]).astype(np.float64))
    forgotten_last = _source(recipe.optimizer, energy, shown_lr, recipe.momentum) / (power * y_last)
    in_equilibrium = np.asarray(_tuning_rate(recipe, shown_lr, shown_decay))

    starts = np.searchsorted(edges, ends[:-1])
    steps = np.add.reduceat(length, starts)
    step_angle, epoch_angle = _angles(
        recipe,
        np.add.reduceat(length * lr * decay, starts) / steps,
        forgotten_last[1:],
        np.add.reduceat(length * forgotten, starts) / steps,
    )
    norm = y[np.searchsorted(edges, ends)] ** (1 / power)
    effective = shown_lr / norm**2
    return Curves(
        epoch=ends / recipe.steps_per_epoch,
        step=ends.astype(np.float64),
        lr=shown_lr,
        weight_decay=shown_decay,
        norm=norm,
        step_angle=np.append(np.nan, step_angle),
        epoch_angle=np.append(np.nan, epoch_angle),
        effective_lr=effective,
        effective_lr_epoch=effective * recipe.steps_per_epoch,
        settled=np.sqrt(np.where(shown_lr * shown_decay > 0, forgotten_last / in_equilibrium, np.nan)),
    )


def _epoch_ends(epochs: float, steps_per_epoch: float, total: int) -> NDArray[np.int64]:
    """0, the last step of every epoch, and `total`; an epoch shorter than a step has no end of its own."""
    whole = np.rint(np.arange(math.floor(epochs) + 1) * steps_per_epoch).astype(np.int64)
    return np.unique(np.minimum(np.append(whole, total), total))


def _scales(recipe: Recipe, unit_grad_sq: float | None, initial_norm: float | None) -> tuple[float, float]:
    """(L, ‖w₀‖), with the defaults that `curves` promises."""
    for name, value in (("unit_grad_sq", unit_grad_sq), ("initial_norm", initial_norm)):
        if value is not None:
            check_number(name, value, low=1e-50, high=1e50, cure="measure it, or leave it out")
        elif recipe.weight_decay == 0:
            raise ArgumentError(name, "given without weight decay", None, "there is no equilibrium to count from")
    if recipe.weight_decay == 0:
        assert unit_grad_sq is not None
        assert initial_norm is not None
        return unit_grad_sq, initial_norm
    # y* = L·unit for the recipe's own rates
    unit = float(
        _source(recipe.optimizer, 1.0, np.array(recipe.lr), recipe.momentum)
        / (norm_power(recipe.optimizer) * _tuning_rate(recipe, recipe.lr, recipe.weight_decay))
    )
    energy = 1 / unit if unit_grad_sq is None else unit_grad_sq
    return energy, (energy * unit) ** (1 / norm_power(recipe.optimizer)) if initial_norm is None else initial_norm


def _tuning_rate(recipe: Recipe, lr: Any, weight_decay: Any) -> Any:
    return tuning_rate(recipe.optimizer, lr, weight_decay, recipe.momentum)


def _source(optimizer: str, energy: float, lr: Floats, momentum: float) -> Floats:
    return np.asarray(2 * energy * (lr / (1 - momentum)) ** 2 if rule_of(optimizer).coupled else energy * lr**2)


def _block_edges(ends: NDArray[np.int64], schedule: Schedule) -> NDArray[np.int64]:
    """Where the blocks begin, and the run's end: at every epoch's end, at every phase's start, and evenly between."""
    total = int(ends[-1])
    even = np.linspace(0, total, min(total, _MOST_BLOCKS) + 1).round().astype(np.int64)
    phases = np.array([step for step in getattr(schedule, "starts", ()) if step < total], dtype=np.int64)
    return np.unique(np.concatenate([even, ends, phases]))


def _relax(start: float, rate: Floats, source: Floats, length: Floats) -> Floats:
    """y at the beginning of each block and at the end of the last."""
    factors = np.exp(-rate * length)
    gained = _gain(rate, length) * source
    y, out = start, [start]
    for keep, gain in zip(factors.tolist(), gained.tolist(), strict=True):
        y = y * keep + gain
        out.append(y)
    return np.array(out)


def _relax_within(y: Floats, rate: Floats, source: Floats, steps: Floats) -> Floats:
    """y after so many steps of a block that begins with `y`."""
    return np.asarray(y * np.exp(-rate * steps) + _gain(rate, steps) * source)


def _gain(rate: Floats, steps: Floats) -> Floats:
    """(1 − e^(−rn))/r, n without weight decay."""
    return np.divide(-np.expm1(-rate * steps), rate, out=np.array(steps, dtype=np.float64), where=rate > 0)


def _angles(recipe: Recipe, intrinsic_lr: Floats, at_end: Floats, mean: Floats) -> tuple[Floats, Floats]:
    """Step angle at the end of each epoch and angle over it: the law of equilibrium, its exponent scaled by y*/y.

    With x̄ the mean of ηλ over the epoch, 1 − cos Δ = (1 − ρ₁(x̄))·(y*/y) and cos Δθ = ρ_k(x̄)^(mean of y*/y); `at_end`
    and `mean` are x'·y*/y at the epoch's last step and over the epoch.
    """
    per_step, per_epoch = _tabulate_rates(recipe, np.maximum(intrinsic_lr, _TINY_RATE))
    loss = np.minimum(1.0, per_step * at_end)  # a step at right angles to w never turns it by more than 90°
    step_angle = 2 * np.arcsin(np.sqrt(loss / 2))
    return step_angle, 2 * np.arcsin(np.sqrt(-np.expm1(-per_epoch * mean) / 2))


def _tabulate_rates(recipe: Recipe, x: Floats) -> tuple[Floats, Floats]:
    """`_decorrelation_rates` at each intrinsic learning rate; interpolated linearly where there are very many."""
    distinct, place = np.unique(x, return_inverse=True)
    nodes = distinct if len(distinct) <= _MOST_LAWS else np.geomspace(distinct[0], distinct[-1], _MOST_LAWS)
    rates = np.array([_decorrelation_rates(recipe, float(node)) for node in nodes])
    if len(nodes) < len(distinct):
        rates = np.stack([np.interp(np.log(distinct), np.log(nodes), column) for column in rates.T], axis=1)
    return rates[place, 0], rates[place, 1]


def _decorrelation_rates(recipe: Recipe, x: float) -> tuple[float, float]:
    """(1 − ρ₁)/x' and −ln ρ_k/x' at intrinsic learning rate x."""
    motion = law(recipe.optimizer, lr=1.0, weight_decay=x, momentum=recipe.momentum, beta2=recipe.beta2)
    share = _tuning_rate(recipe, 1.0, x)
    # An underdamped motion can have ρ_k ≤ 0: as good as a right angle.
    lost = min(float(motion.decorrelation(recipe.steps_per_epoch)), 1 - 1e-15)
    return motion.first / share, -math.log1p(-lost) / share
