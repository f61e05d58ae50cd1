"""Where the norm of a scale-invariant weight settles, how fast it gets there, and what a decay does to it.

Symbols: η = `lr`, λ = `weight_decay`, μ = `momentum`, x = ηλ, x' = x/(1−μ) for coupled decay and x for decoupled,
L = `unit_grad_sq` = E‖g̃‖², the mean squared norm of the unit gradient g̃ = g·‖w‖ (with momentum, of the adjusted one).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from isogon.errors import ArgumentError, check_number
from isogon.theory.motion import tuning_rate
from isogon.theory.optimizers import Floats, check_beta2, rule_of


def equilibrium_norm(
    optimizer: str,
    *,
    lr: float,
    weight_decay: float,
    momentum: float,
    unit_grad_sq: float | None = None,
    parameters: int | None = None,
    beta2: float | None = None,
) -> float:
    """‖w‖ at equilibrium.

    - `sgd`: ‖w‖⁴ = Lη/(λ(1−μ)(2 − x/(1+μ))) (Wan et al., theorems 1 and 2);
    - `nesterov`: ‖w‖⁴ = Lη[(1+μ) + μ(1+2μ)x] / {λ(1−μ+μx)[2(1+μ) − (1+2μ)x]}, for gradient noise;
    - `adamw`: ‖w‖² = ηC/(2λ), C = `parameters`, for x ≪ 1 − β₂;
    - `lion`: ‖w‖² = ηCS/(λ(2−x)), S = `lion_persistence`, for gradient noise.

    `muon` has no formula.

    >>> round(equilibrium_norm("sgd", lr=0.2, weight_decay=1e-4, momentum=0, unit_grad_sq=1e-3), 4)
    1.0
    """
    rule = rule_of(optimizer)
    if rule.norm is None:
        raise ArgumentError("optimizer", "one with a known equilibrium norm", optimizer, "measure the norm")
    _positive("lr", lr)
    _positive("weight_decay", weight_decay)
    if rule.coupled and unit_grad_sq is None:
        raise ArgumentError("unit_grad_sq", "given for " + optimizer, None, "measure E‖g‖²‖w‖²")
    if not rule.coupled and parameters is None:
        raise ArgumentError("parameters", "given for " + optimizer, None, "count the weight's elements")
    energy = _positive("unit_grad_sq", unit_grad_sq) if rule.coupled else _positive("parameters", parameters)
    second = check_beta2(optimizer, beta2) if rule.remembers_beta2 else 0.0  # others' norms do not depend on it
    factor = rule.norm(lr * weight_decay, momentum, second)
    return float((factor * energy * lr / weight_decay) ** (1 / rule.norm_power))


def norm_power(optimizer: str) -> int:
    """The power of ‖w‖ that relaxes exponentially and is proportional to η at equilibrium: 4 coupled, 2 decoupled."""
    return rule_of(optimizer).norm_power


def approach_rate(optimizer: str, *, lr: float, weight_decay: float, momentum: float) -> float:
    """The share by which ‖w‖⁴ (decoupled: ‖w‖²) comes closer to equilibrium in a step: 4x' (decoupled: 2x)."""
    return norm_power(optimizer) * tuning_rate(optimizer, lr, weight_decay, momentum)


def norm_variance_floor(*, lr: float, momentum: float, unit_grad_sq: float, unit_grad_var: float) -> float:
    """Var‖w‖² that remains at equilibrium under coupled decay: η²V/(4L(1−μ)²), V = `unit_grad_var` = Var h̃."""
    _positive("unit_grad_sq", unit_grad_sq)
    return lr**2 * unit_grad_var / (4 * unit_grad_sq * (1 - momentum) ** 2)


def norm_error_bound(
    step: ArrayLike,
    *,
    lr: float,
    weight_decay: float,
    momentum: float,
    initial_error_sq: float,
    unit_grad_var: float,
    unit_grad_min: float,
) -> Floats:
    """Wan et al.'s bound on E(‖w_t‖² − ‖w*‖²)² after `step` steps.

    Plain SGD (17): (1−4x)^t B + Vη²/l. Momentum (20): 3B(1−4x')^t + 3Vη²(1+4μ²+μ⁴)/(l(1−μ)⁴), with
    B = `initial_error_sq`, V = `unit_grad_var` and l = `unit_grad_min`, a lower bound of the unit gradient's square.
    """
    _positive("unit_grad_min", unit_grad_min)
    memory = (1 - 4 * tuning_rate("sgd", lr, weight_decay, momentum)) ** np.asarray(step, dtype=np.float64)
    floor = unit_grad_var * lr**2 / unit_grad_min
    if momentum == 0:
        return np.asarray(memory * initial_error_sq + floor)
    spread = (1 + 4 * momentum**2 + momentum**4) / (1 - momentum) ** 4
    return np.asarray(3 * (initial_error_sq * memory + floor * spread))


def angle_after_decay(step: ArrayLike, *, factor: float, final_angle: float, rate: float) -> Floats:
    """Step angle `step` steps after η was divided by κ = `factor`: Δ_t = Δ*/√(1 + (κ−1) e^(−rt)).

    Δ* = `final_angle` is the new equilibrium's, r = `rate` = `approach_rate` with the NEW learning rate.
    """
    _above_one("factor", factor)
    decayed = np.exp(-rate * np.asarray(step, dtype=np.float64))
    return np.asarray(final_angle / np.sqrt(1 + (factor - 1) * decayed))


def steps_after_decay(*, factor: float, rate: float, within: float = 0.05) -> float:
    """Steps after η is divided by κ = `factor` until the angle is within a relative δ of its new value.

    ln((κ−1)/(2δ))/r, δ = `within`, r = `rate` = `approach_rate` with the NEW learning rate; 0 when it never leaves δ.

    >>> rate = approach_rate("sgd", lr=0.01, weight_decay=1e-4, momentum=0.9)
    >>> round(steps_after_decay(factor=10, rate=rate)), round(least_steps_after_decay(factor=10, rate=rate))
    (112495, 57565)
    """
    _above_one("factor", factor)
    return _wait(factor - 1, rate, within)


def least_steps_after_decay(*, factor: float, rate: float) -> float:
    """Wan et al.'s lower bound (corollary 3.1): ln κ/r steps; there Δ is still 0.73 of its new value for κ = 10."""
    _above_one("factor", factor)
    return math.log(factor) / _positive("rate", rate)


def steps_still_to_wait(measured_angle: float, *, final_angle: float, rate: float, within: float = 0.05) -> float:
    """Steps until a step angle now at `measured_angle` is within δ of `final_angle`: ln(|(Δ*/Δ)² − 1|/(2δ))/r."""
    _positive("measured_angle", measured_angle)
    return _wait(abs((final_angle / measured_angle) ** 2 - 1), rate, within)


def steps_to_equilibrium(
    norm_ratio: float,
    *,
    optimizer: str,
    lr: float,
    weight_decay: float,
    momentum: float,
    within: float = 0.05,
) -> float:
    """Steps from ‖w₀‖ = `norm_ratio` · ‖w*‖ until the step angle is within δ: ln(|y₀/y* − 1|/(2δ))/r.

    y is ‖w‖⁴ for coupled decay and ‖w‖² for decoupled; r is `approach_rate`.
    """
    _positive("norm_ratio", norm_ratio)
    rate = approach_rate(optimizer, lr=lr, weight_decay=weight_decay, momentum=momentum)
    return _wait(abs(norm_ratio ** norm_power(optimizer) - 1), rate, within)


def rescale_factor(optimizer: str, *, factor: float) -> float:
    """c by which to multiply ‖w‖ when η is divided by κ = `factor`, to be in the new equilibrium at once.

    κ^(−1/4) for coupled decay, κ^(−1/2) for decoupled (Wan et al., section 4). The momentum buffer is divided by c.
    """
    _positive("factor", factor)
    return float(factor ** (-1 / norm_power(optimizer)))


def balanced_decay(*, lr: float, weight_decay: float, factor: float) -> tuple[float, float]:
    """(η/√κ, λ/√κ): the run that `rescale_factor` makes, without touching a tensor; the norm stays where it is."""
    root = math.sqrt(_positive("factor", factor))
    return lr / root, weight_decay / root


def direct_time(intrinsic_lr: float, *, excess: float) -> float:
    """Order of the steps to equilibrium at one rate: max(ln(γ₀/γ*), 1)/x, with `excess` = γ₀/γ* (Li, Lyu, Arora, E)."""
    return max(math.log(_positive("excess", excess)), 1.0) / _positive("intrinsic_lr", intrinsic_lr)


def two_stage_time(intrinsic_lr: float, *, excess: float, factor: float) -> float:
    """Order of the steps to equilibrium at x when K times the rate comes first (Li, Lyu, Arora, equation 15).

    max(ln(γ₀/(Kγ*)), 1)/(Kx) + ln K/x, with K = `factor` and `excess` = γ₀/γ*, γ = (‖w‖²/η)², γ* = σ²/(2x). In the
    paper's units γ* = 1, so that γ₀/(Kγ*) = G₀²/(Kη²). The large rate cuts the memory of the start by K; the
    detour costs ln K.
    """
    _above_one("factor", factor)
    return direct_time(factor * intrinsic_lr, excess=excess / factor) + math.log(factor) / intrinsic_lr


def _wait(distance: float, rate: float, within: float) -> float:
    """ln(distance/(2δ))/r, never negative."""
    check_number("within", within, low=0, high=1, low_open=True, high_open=True, cure="0.05 means 5 %")
    _positive("rate", rate)
    return max(0.0, math.log(distance / (2 * within)) / rate) if distance > 0 else 0.0


def _positive(name: str, value: float | None) -> float:
    return check_number(name, value, low=0, low_open=True, cure="equilibrium needs a positive value")


def _above_one(name: str, value: float) -> float:
    return check_number(name, value, low=1, cure="a factor of 10 divides the learning rate by 10")
