"""How fast the direction of a scale-invariant weight turns: one law for every lag and every optimizer.

In equilibrium a scale-invariant weight driven by gradient noise is a linear process with a slow pole p and a fast
pole q. The cosine between its direction now and j steps later is

    ρ_j = [ (ρ₁ − q) p^j + (p − ρ₁) q^j ] / (p − q).

Only p, q and ρ₁ depend on the optimizer: `theory.optimizers` has an entry for each. Lag 1 is the angular update of Wan
et al. (theorem 3), lag N/B that of Yun et al. (equations 18 and 27), and p is the α of Li and Arora (theorem 2.9).

1 − ρ_j is as small as 1e-12, so nothing below subtracts a correlation from 1: poles are kept as a = 1 − p, b = 1 − q.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from isogon.errors import ArgumentError, check_number
from isogon.theory.optimizers import Floats, check_beta2, rule_of

# Up to this lag the recurrence is both exact and quick; beyond it the closed form loses nothing.
_RECURRENCE_LAGS = 64


@dataclass(frozen=True)
class Motion:
    """The motion of a weight's direction in equilibrium; made by `law`.

    >>> m = law("sgd", lr=0.1, weight_decay=5e-4, momentum=0.9)
    >>> round(float(m.angle(1)), 6), round(float(m.correlation(391)), 4), round(m.timescale)
    (0.007255, 0.8256, 1990)
    """

    optimizer: str
    lr: float
    weight_decay: float
    momentum: float
    #: a = 1 − p and b = 1 − q; a conjugate pair when the poles are complex
    slow: complex
    fast: complex
    #: 1 − ρ₁
    first: float
    #: largest ηλ whose poles are real and positive (infinite for decoupled weight decay)
    bound: float
    #: True where the law is an approximation even for pure noise
    approximate: bool = False

    @property
    def poles(self) -> tuple[complex, complex]:
        """(p, q), slow and fast; floats unless the motion is underdamped."""
        return 1 - self.slow, 1 - self.fast

    @property
    def underdamped(self) -> bool:
        """Whether ηλ exceeds `bound`: the poles leave (0, 1), the correlation oscillates."""
        return self.lr * self.weight_decay > self.bound

    @property
    def max_weight_decay(self) -> float:
        """The largest weight decay, at this learning rate, whose poles are real."""
        return self.bound / self.lr

    @property
    def timescale(self) -> float:
        """Steps over which the direction is forgotten: −1/ln|p|, infinite without weight decay."""
        rate = -_log_abs_one_minus(self.slow)
        return 1 / rate if rate > 0 else math.inf

    def correlation(self, lag: ArrayLike) -> Floats:
        """ρ at `lag` steps (a number or an array). See `decorrelation` for lags that are not whole."""
        return 1 - self.decorrelation(lag)

    def angle(self, lag: ArrayLike) -> Floats:
        """∠(w_t, w_{t+lag}) in radians: arccos ρ, computed as 2·asin(√((1 − ρ)/2)) to keep tiny angles."""
        return np.asarray(2 * np.arcsin(np.sqrt(np.clip(self.decorrelation(lag) / 2, 0.0, 1.0))))

    def decorrelation(self, lag: ArrayLike) -> Floats:
        """1 − ρ at `lag` steps, free of cancellation.

        A lag that is not whole mixes its two neighbours: an epoch of 390.625 steps is one of 390 or 391, and this
        is the mean over such epochs.
        """
        lags = np.asarray(lag, dtype=np.float64)
        if not np.all(np.isfinite(lags)) or np.any(lags < 0):
            raise ArgumentError("lag", "finite and at least 0", lag, "count steps forwards")
        below = np.floor(lags)
        share = lags - below
        at_floor = self._at_whole(below)
        if not np.any(share):
            return at_floor
        return at_floor + share * (self._at_whole(below + 1) - at_floor)

    def _at_whole(self, lags: Floats) -> Floats:
        if self.lr * self.weight_decay == 0:
            return np.zeros_like(lags)
        table = self._recurrence()
        result = table[np.minimum(lags, _RECURRENCE_LAGS).astype(np.int64)]
        far = lags > _RECURRENCE_LAGS
        if np.any(far):
            result = np.where(far, self._closed_form(np.where(far, lags, _RECURRENCE_LAGS + 1.0)), result)
        return np.asarray(result, dtype=np.float64)

    def _recurrence(self) -> Floats:
        """f_j = 1 − ρ_j for j = 0 … 64: f_{j+1} = f_j + pq (f_j − f_{j−1}) + ab (1 − f_j), f_1 = 1 − ρ₁."""
        product = (self.slow * self.fast).real
        p, q = self.poles
        memory = (p * q).real
        f = [0.0, self.first]
        while len(f) <= _RECURRENCE_LAGS:
            f.append(f[-1] + memory * (f[-1] - f[-2]) + product * (1 - f[-1]))
        return np.array(f)

    def _closed_form(self, lags: Floats) -> Floats:
        """f_j from the poles, for lags above 64."""
        p, q = self.poles
        if isinstance(p, complex):
            return self._oscillating(lags, p)
        if p <= 0 or q < 0:  # ηλ near 1 or above: weights change sign, nothing is small, nothing cancels
            rho = 1 - self.first
            if p == q:
                return 1 - (np.power(p, lags) + (rho - p) * lags * np.power(p, lags - 1))
            return 1 - ((rho - q) * np.power(p, lags) + (p - rho) * np.power(q, lags)) / (p - q)
        a = self.slow.real
        log_p = math.log1p(-a)
        if q == 0:
            ratio: Floats | float = 1.0
        else:
            log_ratio = math.log1p(-(self.fast.real - a) / p)
            ratio = np.expm1(lags * log_ratio) / math.expm1(log_ratio) if log_ratio else lags
        return -np.expm1(lags * log_p) - (a - self.first) * np.exp((lags - 1) * log_p) * ratio

    def _oscillating(self, lags: Floats, p: complex) -> Floats:
        """f_j for complex poles |p| e^{±iφ}: ρ_j = |p|^j [cos jφ + (ρ₁ − Re p)/(Im p) sin jφ]."""
        phase = math.atan2(p.imag, p.real)
        log_size = _log_abs_one_minus(self.slow)
        size = np.exp(lags * log_size)
        swing = (self.slow.real - self.first) / p.imag
        # 1 − |p|^j cos jφ split into two terms that are each small when the lag is short
        fall = -np.expm1(lags * log_size) + size * 2 * np.sin(lags * phase / 2) ** 2
        return np.asarray(fall - size * swing * np.sin(lags * phase))


@dataclass(frozen=True)
class TabledMotion(Motion):
    """A motion with more than two poles, such as Lion's: exact from the rule's table, then by the slow pole alone."""

    beta2: float = 0.0

    def _at_whole(self, lags: Floats) -> Floats:
        x = self.lr * self.weight_decay
        decorrelations = rule_of(self.optimizer).decorrelations
        assert decorrelations is not None
        table = np.array(decorrelations(x, self.momentum, self.beta2))
        end = len(table) - 1
        near = table[np.minimum(lags, end).astype(np.int64)]
        # Past the table updates are uncorrelated and only the slow pole is left: 1 − f_j = (1 − f_end) p^(j − end).
        beyond = np.maximum(lags - end, 0)
        lost = -np.expm1(beyond * math.log1p(-x)) if x < 1 else 1 - np.power(1 - x, beyond)
        return np.asarray(near + (1 - near) * lost)


def law(
    optimizer: str,
    *,
    lr: float,
    weight_decay: float,
    momentum: float = 0.9,
    beta2: float | None = None,
) -> Motion:
    """The two-pole law of `optimizer` with η = `lr`, λ = `weight_decay`, μ or β₁ = `momentum`, β₂ = `beta2`.

    | optimizer  | p, q                                       | 1 − ρ₁ (x = ηλ)                              |
    |------------|--------------------------------------------|----------------------------------------------|
    | `sgd`      | z² − (1+μ−x) z + μ = 0                     | x/(1+μ)                                      |
    | `nesterov` | z² − (1+μ)(1−x) z + μ(1−x) = 0             | x[1+2μ−2μ³+μ(1+μ)(1+2μ)x]/[(1+μ)+μ(1+2μ)x]   |
    | `adamw`    | 1 − x, β₁                                  | (1−p)(1−q)/(1+pq)                            |
    | `lion`     | 1 − x, β₂ and its odd powers               | from the arcsine law of sign updates         |
    | `muon`     | 1 − x, μ                                   | x(1−μ)(1+2μ−2μ³)/(1+μ), approximate          |

    The conventions are PyTorch's: coupled decay without dampening for `sgd` and `nesterov`, decay decoupled and
    multiplied by the learning rate for the others.

    >>> law("adam", lr=1e-3, weight_decay=0.1)
    Traceback (most recent call last):
    isogon.errors.ArgumentError: optimizer must be one of sgd, nesterov, adamw, lion, muon, got 'adam': Adam divides
    its L2 term by the gradient's own size, so no universal angle exists; decouple the decay with adamw.
    """
    rule = rule_of(optimizer)
    eta = check_number("lr", lr, low=0, low_open=True, cure="give the learning rate")
    decay = check_number("weight_decay", weight_decay, low=0, cure="give 0 for no weight decay")
    mu = check_number("momentum", momentum, low=0, high=1, high_open=True, cure="give 0 for none, 0.9 for the usual")
    x = eta * decay
    limit = rule.limit(mu)
    if not x < limit:
        raise ArgumentError(
            "lr · weight_decay",
            f"below {limit:g} for {optimizer} with momentum {mu:g} (there the weights grow without bound)",
            x,
            "lower the weight decay",
        )
    second = check_beta2(optimizer, beta2)
    slow, fast, first, bound = rule.poles(x, mu, second)
    if rule.decorrelations is not None:
        return TabledMotion(optimizer, eta, decay, mu, slow, fast, first, bound, rule.approximate, beta2=second)
    return Motion(optimizer, eta, decay, mu, slow, fast, first, bound, rule.approximate)


def tuning_rate(optimizer: str, lr: float, weight_decay: float, momentum: float) -> float:
    """x', the share of the direction forgotten each step to first order: ηλ/(1−μ) coupled, ηλ decoupled."""
    rate = lr * weight_decay
    return rate / (1 - momentum) if rule_of(optimizer).coupled else rate


def _log_abs_one_minus(z: complex) -> float:
    """ln|1 − z| without loss for small z."""
    square = -2 * z.real + z.real**2 + z.imag**2
    return 0.5 * math.log1p(square) if square > -1 else -math.inf
