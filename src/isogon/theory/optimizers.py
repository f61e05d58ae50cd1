"""The theory of each optimizer: one frozen entry, read by theory, recipe, dynamics, optim, lab and search.

To add one, write its entry at the end of this module; `tests/laws/test_optimizers.py` holds every entry to the same
laws. Symbols: η = `lr`, λ = `weight_decay`, x = ηλ, μ or β₁ = `momentum`, β₂ = `beta2`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isogon.errors import ArgumentError, check_number

Floats = NDArray[np.float64]
#: (x, μ, β₂) → (a, b, 1 − ρ₁, bound): one minus each pole, the first decorrelation, the largest x with real poles
Poles = Callable[[float, float, float], tuple[complex, complex, float, float]]
#: (x, μ, β₂) → c with ‖w‖^p = c·(η/λ)·E at equilibrium, p the rule's `norm_power` and E the size of its updates
NormLaw = Callable[[float, float, float], float]


@dataclass(frozen=True)
class UpdateRule:
    """One optimizer, as far as the motion of scale-invariant weights depends on it."""

    name: str
    #: whether the weight decay passes through the momentum buffer, like PyTorch's SGD
    coupled: bool
    poles: Poles
    #: μ → the x from which on the decay alone makes the weights grow: a pole reaches −1
    limit: Callable[[float], float]
    #: None where no formula is known; E is the mean squared unit gradient where `coupled`, else the parameters' number
    norm: NormLaw | None
    #: class names of optimizers that follow this rule, lower case; the first in a class's ancestry counts
    classes: tuple[str, ...]
    #: what a parameter group has besides, such as {"nesterov": True}
    flags: Mapping[str, Any]
    #: the optimizer's state → the power of c that it is multiplied by when the weights are multiplied by c
    buffers: Mapping[str, int]
    #: how the learning rate follows a batch κ times as large along one stochastic differential equation: as κ to this
    #: power; None where no such equation is known
    sde_power: float | None = None
    #: β₂ where none is given; None for a rule without one
    beta2: float | None = None
    #: β₂ must be below this
    most_beta2: float = 1.0
    #: whether the momentum buffer is an average with β₂, as Lion's
    remembers_beta2: bool = False
    #: (x, μ, β₂) → 1 − ρ_j for j = 0, 1, …, where two poles are not all of it
    decorrelations: Callable[[float, float, float], list[float]] | None = None
    #: whether the law is an approximation even for pure noise
    approximate: bool = False

    @property
    def norm_power(self) -> int:
        """The power of ‖w‖ that relaxes exponentially and is proportional to η at equilibrium."""
        return 4 if self.coupled else 2

    @property
    def rate_power(self) -> int:
        """The power of c in the learning rate that keeps a run the same when the weights are multiplied by c."""
        return self.norm_power // 2

    def memory(self, momentum: float, beta2: float | None) -> float:
        """The factor by which the momentum buffer forgets in a step."""
        return check_beta2(self.name, beta2) if self.remembers_beta2 else momentum


def rule_of(optimizer: str) -> UpdateRule:
    """The entry of `optimizer`; the reason where there is none."""
    return RULES[check_optimizer(optimizer)]


def check_optimizer(optimizer: str) -> str:
    """`optimizer` when its motion has a law; the reason when it has none."""
    if optimizer in RULES:
        return optimizer
    cure = "name the update rule you train with"
    if optimizer == "adam":
        cure = (
            "Adam divides its L2 term by the gradient's own size, so no universal angle exists; "
            "decouple the decay with adamw"
        )
    raise ArgumentError("optimizer", "one of " + ", ".join(RULES), optimizer, cure)


def check_beta2(optimizer: str, beta2: float | None) -> float:
    """β₂ of `optimizer`: the default where None is given, and no value where the optimizer has none."""
    rule = RULES[optimizer]
    if rule.beta2 is None:
        if beta2 is not None:
            having = " and ".join(name for name, other in RULES.items() if other.beta2 is not None)
            raise ArgumentError("beta2", f"left out for {optimizer}", beta2, f"only {having} have a beta2")
        return 0.0
    if beta2 is None:
        return rule.beta2
    return check_number("beta2", beta2, low=0, high=rule.most_beta2, high_open=True, cure=f"the usual is {rule.beta2}")


def _decoupled_limit(_momentum: float) -> float:
    """The limit where decay is decoupled: 1 − x reaches −1."""
    return 2.0


def _heavy_ball(x: float, mu: float, _beta2: float) -> tuple[complex, complex, float, float]:
    root = math.sqrt(mu)
    bound = ((1 - mu) / (1 + root)) ** 2
    slow, fast = _split(x, (1 - mu) + x, (bound - x) * ((1 + root) ** 2 - x))
    return slow, fast, x / (1 + mu), bound


def _nesterov(x: float, mu: float, _beta2: float) -> tuple[complex, complex, float, float]:
    bound = ((1 - mu) / (1 + mu)) ** 2
    discriminant = (1 - x) * ((1 - mu) ** 2 - (1 + mu) ** 2 * x)
    slow, fast = _split(x, (1 - mu) + (1 + mu) * x, discriminant)
    spread = mu * (1 + 2 * mu) * x
    first = x * (1 + 2 * mu - 2 * mu**3 + (1 + mu) * spread) / ((1 + mu) + spread)
    return slow, fast, first, bound


def _adamw(x: float, beta1: float, _beta2: float) -> tuple[complex, complex, float, float]:
    slow, fast = sorted((x, 1 - beta1))
    return slow, fast, slow * fast / (1 + (1 - slow) * (1 - fast)), math.inf


def _lion(x: float, beta1: float, beta2: float) -> tuple[complex, complex, float, float]:
    slow, fast = sorted((x, 1 - beta2))
    return slow, fast, _lion_decorrelations(x, beta1, beta2)[1], math.inf


def _muon(x: float, mu: float, _beta2: float) -> tuple[complex, complex, float, float]:
    slow, fast = sorted((x, 1 - mu))
    return slow, fast, x * (1 - mu) * (1 + 2 * mu - 2 * mu**3) / (1 + mu), math.inf


def _heavy_ball_norm(x: float, mu: float, _beta2: float) -> float:
    """Wan et al., theorems 1 and 2."""
    return 1 / ((1 - mu) * (2 - x / (1 + mu)))


def _nesterov_norm(x: float, mu: float, _beta2: float) -> float:
    spread = (1 + 2 * mu) * x
    return ((1 + mu) + mu * spread) / ((1 - mu + mu * x) * (2 * (1 + mu) - spread))


def _adamw_norm(_x: float, _beta1: float, _beta2: float) -> float:
    """For x ≪ 1 − β₂."""
    return 0.5


def _lion_norm(x: float, beta1: float, beta2: float) -> float:
    return lion_persistence(x, beta1, beta2) / (2 - x)


def lion_persistence(x: float, beta1: float, beta2: float) -> float:
    """S = 1 + (4/π) Σ_{j≥1} arcsin(r_j) (1−x)^j: how far Lion's correlated sign updates add up."""
    alike = _sign_correlations(beta1, beta2)
    return 1 + 2 * float(np.sum(alike * (1 - x) ** np.arange(1, len(alike) + 1.0)))


@lru_cache(maxsize=512)
def _lion_decorrelations(x: float, beta1: float, beta2: float) -> list[float]:
    """f_j = 1 − ρ_j for j = 0, 1, … up to where the sign updates are no longer alike.

    f_j = f_{j−1} + x (1 − f_{j−1}) − (2x−x²) T_j/S with T_j = Σ_{m≥0} (1−x)^m A_{j+m}; 1 − ρ₁ = x (1 − x T₁)/S.
    """
    drive, drives = 0.0, []
    for alike in reversed(_sign_correlations(beta1, beta2).tolist()):
        drive = alike + (1 - x) * drive
        drives.append(drive)
    pull = (2 * x - x * x) / (1 + 2 * (1 - x) * drive)
    f = [0.0]
    for drive in reversed(drives):
        f.append(f[-1] + x * (1 - f[-1]) - pull * drive)
    return f


def _sign_correlations(beta1: float, beta2: float) -> Floats:
    """A_j = (2/π) arcsin r_j, the correlation of two sign updates j = 1, 2, … steps apart, until it is nil.

    r_j = β₂^(j−1) β₁(1−β₂)[(1−β₁) + β₁β₂/(1+β₂)]/K², K² = (1−β₁)² + β₁²(1−β₂)/(1+β₂), is that of their arguments.
    """
    variance = (1 - beta1) ** 2 + beta1**2 * (1 - beta2) / (1 + beta2)
    first = beta1 * (1 - beta2) * ((1 - beta1) + beta1 * beta2 / (1 + beta2)) / variance
    count = 1 if beta2 == 0 else max(1, math.ceil(math.log(1e-17) / math.log(beta2)))
    return np.asarray(2 / math.pi * np.arcsin(first * beta2 ** np.arange(count)))


def _split(x: float, total: float, discriminant: float) -> tuple[complex, complex]:
    """(a, b) with a + b = `total` and ab = x: b from the quadratic, a = x/b without cancellation."""
    if discriminant < 0:
        half = complex(total, math.sqrt(-discriminant)) / 2
        return half.conjugate(), half
    fast = (total + math.sqrt(discriminant)) / 2
    return x / fast, fast


_ENTRIES = (
    UpdateRule(
        "sgd",
        coupled=True,
        poles=_heavy_ball,
        limit=lambda mu: 2 * (1 + mu),
        norm=_heavy_ball_norm,
        classes=("sgd",),
        flags={"nesterov": False},
        buffers={"momentum_buffer": -1},
        sde_power=1.0,
    ),
    UpdateRule(
        "nesterov",
        coupled=True,
        poles=_nesterov,
        limit=lambda mu: 2 * (1 + mu) / (1 + 2 * mu),
        norm=_nesterov_norm,
        classes=("sgd",),
        flags={"nesterov": True},
        buffers={"momentum_buffer": -1},
        sde_power=1.0,
    ),
    UpdateRule(
        "adamw",
        coupled=False,
        poles=_adamw,
        limit=_decoupled_limit,
        norm=_adamw_norm,
        classes=("adamw",),
        flags={},
        buffers={"exp_avg": -1, "exp_avg_sq": -2, "max_exp_avg_sq": -2},
        sde_power=0.5,
        beta2=0.999,  # PyTorch's
    ),
    UpdateRule(
        "lion",
        coupled=False,
        poles=_lion,
        limit=_decoupled_limit,
        norm=_lion_norm,
        classes=("lion",),
        flags={},
        buffers={"exp_avg": -1},
        beta2=0.99,  # its paper's
        most_beta2=0.9999,  # the law sums about 40/(1 − β₂) terms
        remembers_beta2=True,
        decorrelations=_lion_decorrelations,
    ),
    UpdateRule(
        "muon",
        coupled=False,
        poles=_muon,
        limit=_decoupled_limit,
        norm=None,
        classes=("muon",),
        flags={},
        buffers={"momentum_buffer": -1},
        approximate=True,
    ),
)
#: every rule by its name
RULES: Mapping[str, UpdateRule] = {rule.name: rule for rule in _ENTRIES}
OPTIMIZERS = tuple(RULES)
#: those whose weight decay passes through the momentum buffer
COUPLED = tuple(name for name, rule in RULES.items() if rule.coupled)
