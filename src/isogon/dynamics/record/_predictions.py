"""What theory expects of a weight trained with given settings; None where it expects nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from isogon.dynamics.measure import Settings
from isogon.errors import ArgumentError
from isogon.theory import equilibrium_norm, law, norm_power, rule_of, tuning_rate


@dataclass(frozen=True)
class Prediction:
    """In equilibrium: the angles of a step and of an epoch; x' = `rate`, and the power of the norm that relaxes."""

    step_angle: float
    epoch_angle: float
    rate: float
    power: int


@lru_cache(maxsize=4096)
def prediction(settings: Settings, steps_per_epoch: float) -> Prediction | None:
    """The law's angles; None without weight decay, without a law, and where the weights would grow without bound."""
    kind, lr = settings.kind, _lr(settings)
    if kind is None or not lr * settings.weight_decay > 0:
        return None
    try:
        motion = law(kind, lr=lr, weight_decay=settings.weight_decay, momentum=settings.momentum, beta2=settings.beta2)
    except ArgumentError:
        return None
    return Prediction(
        step_angle=float(motion.angle(1)),
        epoch_angle=float(motion.angle(steps_per_epoch)),
        rate=tuning_rate(kind, lr, settings.weight_decay, settings.momentum),
        power=norm_power(kind),
    )


@lru_cache(maxsize=4096)
def norm_factor(settings: Settings) -> float:
    """c in the equilibrium norm: ‖w‖ = c·L^(1/4), L = E h̃, for coupled decay, else c·√(parameters); NaN if unknown."""
    kind = settings.kind
    if kind is None or rule_of(kind).norm is None:
        return math.nan
    return equilibrium_norm(
        kind,
        lr=_lr(settings),
        weight_decay=settings.weight_decay,
        momentum=settings.momentum,
        unit_grad_sq=1.0 if rule_of(kind).coupled else None,
        parameters=1,
        beta2=settings.beta2,
    )


def _lr(settings: Settings) -> float:
    """η, with dampening τ (1 − τ)η: a buffer (1 − τ) times as long steps as far with a rate 1/(1 − τ) times as high."""
    return float(settings.lr) * (1 - settings.dampening)
