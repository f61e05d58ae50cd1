"""Weight decay as an exponential learning rate (Li and Arora): the same sequence of networks without weight decay.

For heavy-ball SGD on scale-invariant weights, a run with rates η_t, λ_t and one without weight decay at rates η̃_t make
the same networks when w̃_t = P_t w_t, with

    η̃_t = P_t P_{t+1} η_t.

`exp_lr` and `texp` let P grow by the slow pole p of each phase, P_{t+1} = P_t/p, and need the momentum buffer corrected
at the first step of a phase; `texp_plus` lets it grow by a recursion that needs no correction, for any schedule. P_t
leaves the range of floats after some ten thousand steps, so everything is kept as logarithms; `optim.drive` rebases the
weights.
"""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike

from isogon.errors import ArgumentError, check_number
from isogon.schedules._curves import Floats, Phases, Schedule, check_steps, constant, phases
from isogon.theory import Motion, law

# Steps by which the table of a recursion grows.
_BLOCK = 4096


class Exponential:
    """What every exponential schedule offers besides `.lr` and `.weight_decay` (which is 0), once it knows ln P."""

    #: the schedule with weight decay that makes the same networks
    ordinary: Schedule
    momentum: float

    @property
    def of_others(self) -> Schedule:
        """The schedule of weights that are not invariant."""
        return self.ordinary

    def log_scale(self, step: ArrayLike) -> Floats:
        """ln P_t: how much larger the weights are than those of the run with weight decay."""
        raise NotImplementedError

    def momentum_correction(self, step: ArrayLike) -> Floats:
        """k_t·P_t²: before step t the buffer is to become ṽ + k_t w̃_t; 0 where nothing is to be corrected.

        The factor P_t² keeps it within floats; in a run rebased to weights of the ordinary size it is k_t itself.
        """
        raise NotImplementedError

    def log_lr(self, step: ArrayLike) -> Floats:
        """ln η̃_t."""
        steps = check_steps(step)
        with np.errstate(divide="ignore"):  # a rate of 0 has the logarithm −∞
            return np.asarray(self.log_scale(steps) + self.log_scale(steps + 1) + np.log(self.ordinary.lr(steps)))

    def lr(self, step: ArrayLike) -> Floats:
        """η̃_t; infinite where it leaves the range of floats."""
        with np.errstate(over="ignore"):
            return np.exp(self.log_lr(step))

    def weight_decay(self, step: ArrayLike) -> Floats:
        """0."""
        return np.zeros(np.shape(step))


@dataclass(frozen=True)
class Texp(Exponential):
    """TEXP: P grows by 1/p_I per step in phase I (theorems 2.9, 2.12 and B.2).

    `given` is the schedule it was made from, where that is not `ordinary`.
    """

    ordinary: Phases
    momentum: float
    given: Phases | None = None

    @property
    def of_others(self) -> Schedule:
        return self.given or self.ordinary

    @cached_property
    def motions(self) -> tuple[Motion, ...]:
        """The law of each phase; its slow pole is the phase's α*."""
        return tuple(
            _real_poles(lr, decay, self.momentum)
            for lr, decay in zip(self.ordinary.lrs, self.ordinary.weight_decays, strict=True)
        )

    def log_scale(self, step: ArrayLike) -> Floats:
        steps = check_steps(step)
        growth = np.array([-math.log1p(-motion.slow.real) for motion in self.motions])
        starts = np.array(self.ordinary.starts, dtype=np.float64)
        at_start = np.concatenate([[0.0], np.cumsum(growth[:-1] * np.diff(starts))])
        phase = self.ordinary.phase(steps)
        return np.asarray(at_start[phase] + growth[phase] * (steps - starts[phase]))

    def momentum_correction(self, step: ArrayLike) -> Floats:
        """(1 − 1/p_new)/η_new − (1 − 1/p_old)/η_old at the first step of a phase; before the first there is none."""
        steps = check_steps(step)
        pull = [
            -motion.slow.real / (1 - motion.slow.real) / lr
            for motion, lr in zip(self.motions, self.ordinary.lrs, strict=True)
        ]
        jumps = np.diff([0.0, *pull])
        phase = self.ordinary.phase(steps)
        return np.where(steps == np.array(self.ordinary.starts)[phase], jumps[phase], 0.0)


@dataclass(frozen=True)
class _Tabled(Exponential):
    """P_{t+1} = P_t/α_{t+1} by a recursion, for any schedule: a table of ln P that grows on demand.

    α_{t+1} = 1 − η_t (λ_t + m κ_t), κ_{t+1} = (λ_t + m κ_t)/α_{t+1}, κ₀ = 0, where m κ_t is what the momentum buffer
    would have carried of earlier weight decay. No rate is divided by, so that a rate may be 0.
    """

    ordinary: Schedule
    momentum: float
    _log_scales: array[float] = field(default_factory=lambda: array("d", [0.0]), repr=False, compare=False)
    _last_kappa: array[float] = field(default_factory=lambda: array("d", [0.0]), repr=False, compare=False)

    @property
    def _carried(self) -> float:
        """m."""
        return self.momentum

    def log_scale(self, step: ArrayLike) -> Floats:
        steps = check_steps(step)
        if np.any(steps != np.floor(steps)):
            raise ArgumentError("step", "whole for this schedule", step, "it is a recursion over steps")
        self._grow(int(steps.max(initial=0)))
        return np.asarray(np.frombuffer(self._log_scales)[steps.astype(np.int64)])

    def momentum_correction(self, step: ArrayLike) -> Floats:
        return np.zeros(np.shape(step))

    def _grow(self, last: int) -> None:
        table, carried, kappa = self._log_scales, self._carried, self._last_kappa[0]
        if len(table) > last:
            return
        steps = np.arange(len(table) - 1, max(last, len(table) - 1 + _BLOCK))
        rates, decays = self.ordinary.lr(steps), self.ordinary.weight_decay(steps)
        for step, rate, decay in zip(steps.tolist(), rates.tolist(), decays.tolist(), strict=True):
            pull = decay + carried * kappa
            lost = rate * pull  # 1 − α
            if not lost < 1:
                bound = law("sgd", lr=1.0, weight_decay=0.0, momentum=carried).bound
                raise ArgumentError(
                    "schedule",
                    f"one whose α stays positive (lemma B.7: it does for ηλ up to {bound:.3g})",
                    f"α = {1 - lost:.3g} after step {step}",
                    "lower the weight decay or the learning rate",
                )
            table.append(table[-1] - math.log1p(-lost))
            self._last_kappa[0] = kappa = pull / (1 - lost)


_T = TypeVar("_T", bound=_Tabled)


class TexpPlus(_Tabled):
    """TEXP++: exact for any schedule and any first buffer, without corrections (theorem 2.13).

    α₀ = 1, α_t = 1 − η_{t−1}λ_{t−1} + (η_{t−1}/η_{t−2}) μ (1 − 1/α_{t−1}) with the ratio 1 at t = 1, P_t = P_{t−1}/α_t:
    the table's recursion with m = μ and κ_t = (1/α_t − 1)/η_{t−1}.
    """


def exp_lr(schedule: Schedule, *, momentum: float) -> Texp:
    """η̃_t = η p^(−2t−1), the exponential schedule of constant η and λ (theorems 2.1 and 2.9).

    >>> schedule = exp_lr(constant(0.1, 5e-4), momentum=0.9)
    >>> round(float(schedule.lr(391) / schedule.lr(0)), 3)  # a growth of 1.481 per epoch, Li and Arora's figure 1
    1.481
    """
    if not isinstance(schedule, Phases) or len(schedule.starts) != 1:
        raise ArgumentError("schedule", "constant for exp_lr", schedule, "use texp for phases, texp_plus for the rest")
    return texp(schedule, momentum=momentum)


def texp(schedule: Schedule, *, momentum: float) -> Texp:
    """TEXP of a schedule in phases, each with its own η and λ (theorems 2.12 and B.2).

    Exact with `momentum_correction` applied, approximate without.
    """
    if not isinstance(schedule, Phases):
        raise ArgumentError("schedule", "in phases for texp", schedule, "use texp_plus, which takes any schedule")
    result = Texp(_check_nonzero(schedule), _check_momentum(momentum))
    _ = result.motions  # refuses complex poles now rather than at some later step
    return result


def texp_minus(schedule: Schedule, *, momentum: float) -> Texp:
    """TEXP−−: TEXP without the instant drop of the rate at a phase's start (equation 8).

    The same networks as a constant η = η₀ whose weight decay is divided instead: λ_I ← η_I λ_I/η₀.
    """
    if not isinstance(schedule, Phases):
        raise ArgumentError("schedule", "in phases for texp_minus", schedule, "give phases or step_decay")
    first = _check_nonzero(schedule).lrs[0]
    rows = zip(schedule.starts, schedule.lrs, schedule.weight_decays, strict=True)
    result = texp(phases([(start, first, lr * decay / first) for start, lr, decay in rows]), momentum=momentum)
    # To trade η for λ is an equivalence for invariant weights alone.
    return replace(result, given=schedule)


def texp_plus(schedule: Schedule, *, momentum: float) -> TexpPlus:
    """TEXP++ of any schedule (theorem 2.13), rates of 0 included: a warm-up may start and a cosine end there."""
    return _start(TexpPlus(schedule, _check_momentum(momentum)))


def ordinary_form(*, lr: float, growth: float, momentum: float) -> Phases:
    """The way back: the constant η, λ that make the networks of the rate `lr` · `growth`^t without weight decay.

    p = growth^(−1/2), ηλ = (1 − p)(p − μ)/p, and η = p · `lr`, since η̃₀ = η/p.

    >>> first, second = exp_lr(constant(0.1, 5e-4), momentum=0.9).lr([0, 1])
    >>> back = ordinary_form(lr=first, growth=second / first, momentum=0.9)
    >>> round(float(back.lr(0)), 9), round(float(back.weight_decay(0)), 9)
    (0.1, 0.0005)
    """
    check_number("lr", lr, low=0, low_open=True, cure="give the first learning rate")
    mu = _check_momentum(momentum)
    check_number("growth", growth, low=1, cure="give the factor of one step")
    lost = -math.expm1(-math.log(growth) / 2)  # 1 − p
    p = 1 - lost
    if p * p < mu:
        raise ArgumentError(
            "growth",
            f"at most 1/momentum = {1 / mu:g} (beyond, p would be the fast pole)",
            growth,
            "no weight decay grows weights so fast",
        )
    return constant(p * lr, lost * (p - mu) / p / (p * lr))


def closeness_bound(step: ArrayLike, *, largest_intrinsic_lr: float, momentum: float) -> Floats:
    """How far the growth of TEXP++ over that of TEXP can be from 1, `step` steps into a phase (theorem B.8).

    3 x_max/(1−μ) · (μ/z_min²)^(step−1), z_min the slow pole at x_max = `largest_intrinsic_lr`.
    """
    pole = 1 - _real_poles(1.0, largest_intrinsic_lr, _check_momentum(momentum)).slow.real
    power = np.asarray(step, dtype=np.float64) - 1
    return np.asarray(3 * largest_intrinsic_lr / (1 - momentum) * (momentum / pole**2) ** power)


class SgdwForm(_Tabled):
    """SGD with decoupled weight decay: P_{t+1} = P_t/(1 − x_t), exact for any schedule with the momentum of each step.

    `momentum_at(t)` is μ(1 − x_{t−1}); the rates are those of `w ← (1 − ηλ)w − ηv`.
    """

    @property
    def _carried(self) -> float:
        return 0.0  # decoupled weight decay never enters the buffer

    def momentum_at(self, step: ArrayLike) -> Floats:
        steps = check_steps(step)
        before = np.maximum(steps - 1, 0)
        x = self.ordinary.lr(before) * self.ordinary.weight_decay(before)
        return np.asarray(self.momentum * (1 - np.where(steps > 0, x, 0.0)))


@dataclass(frozen=True)
class AdamwForm(Exponential):
    """AdamW at constant rates as Adam without weight decay, exactly.

    x = ηλ, β₁' = β₁(1−x), β₂' = β₂(1−x)², P_t = (1−x)^(−t), η̃_t = P_{t+1} η/(a_t b_t), ε̃_t = ε/(P_t b_t) with
    a_t = [(1−β₁')(1−β₁^{t+1})]/[(1−β₁)(1−β₁'^{t+1})] and b_t = √{[(1−β₂)(1−β₂'^{t+1})]/[(1−β₂')(1−β₂^{t+1})]}.
    `betas` are (β₁, β₂) of AdamW, `adam_betas` those of the run without weight decay.
    """

    ordinary: Phases
    betas: tuple[float, float]

    @property
    def momentum(self) -> float:  # type: ignore[override]
        """β₁ of AdamW."""
        return self.betas[0]

    @property
    def _x(self) -> float:
        return self.ordinary.lrs[0] * self.ordinary.weight_decays[0]

    @property
    def adam_betas(self) -> tuple[float, float]:
        return self.betas[0] * (1 - self._x), self.betas[1] * (1 - self._x) ** 2

    def log_scale(self, step: ArrayLike) -> Floats:
        return np.asarray(-check_steps(step) * math.log1p(-self._x))

    def log_lr(self, step: ArrayLike) -> Floats:
        count = check_steps(step) + 1
        beta, adam_beta = self.betas[0], self.adam_betas[0]
        first = (1 - adam_beta) * (1 - beta**count) / ((1 - beta) * (1 - adam_beta**count))
        return self.log_scale(count) + math.log(self.ordinary.lrs[0]) - np.log(first) - self._log_second(count)

    def log_eps(self, step: ArrayLike) -> Floats:
        """ln(ε̃_t/ε)."""
        steps = check_steps(step)
        return -self.log_scale(steps) - self._log_second(steps + 1)

    def _log_second(self, count: Floats) -> Floats:
        """ln b_t, t + 1 = `count`."""
        beta, adam_beta = self.betas[1], self.adam_betas[1]
        second = (1 - beta) * (1 - adam_beta**count) / ((1 - adam_beta) * (1 - beta**count))
        return np.asarray(np.log(second) / 2)

    def momentum_correction(self, step: ArrayLike) -> Floats:
        return np.zeros(np.shape(step))


def sgdw_form(schedule: Schedule, *, momentum: float) -> SgdwForm:
    """The run without weight decay that equals SGD with decoupled weight decay under `schedule`."""
    return _start(SgdwForm(schedule, _check_momentum(momentum)))


def adamw_form(schedule: Schedule, *, betas: tuple[float, float] = (0.9, 0.999)) -> AdamwForm:
    """The Adam run without weight decay that equals AdamW under a constant `schedule`."""
    if not isinstance(schedule, Phases) or len(schedule.starts) != 1:
        raise ArgumentError("schedule", "constant for adamw_form", schedule, "no exact form is known for the rest")
    return AdamwForm(_check_nonzero(schedule), (_check_momentum(betas[0]), _check_momentum(betas[1])))


def _start(schedule: _T) -> _T:
    """`schedule` with its first block of steps computed, so that a bad one is refused now rather than while it runs."""
    schedule.log_scale(1)
    return schedule


def _real_poles(lr: float, weight_decay: float, momentum: float) -> Motion:
    motion = law("sgd", lr=lr, weight_decay=weight_decay, momentum=momentum)
    if motion.underdamped:
        raise ArgumentError(
            "lr · weight_decay",
            f"at most {motion.bound:.3g} with momentum {momentum:g} (else the poles are complex)",
            lr * weight_decay,
            f"the largest weight decay at this learning rate is {motion.max_weight_decay:.3g}",
        )
    return motion


def _check_nonzero(schedule: Phases) -> Phases:
    if min(schedule.lrs) <= 0:
        raise ArgumentError("lr", "above 0 in every phase", min(schedule.lrs), "a rate of 0 has no exponential form")
    return schedule


def _check_momentum(value: float) -> float:
    return check_number("momentum", value, low=0, high=1, high_open=True, cure="give the optimizer's momentum")
