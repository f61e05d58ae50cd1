"""Systems to iterate without a network: norm maps, identities of norm growth, and the papers' toys.

η = `lr`, λ = `weight_decay`, μ = `momentum`, x = ηλ throughout.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from isogon.errors import ArgumentError, check_choice, check_number, check_whole
from isogon.theory.optimizers import Floats

# Norm maps (Wan et al., figures 4 and 5)


def sgd_norm_map(initial: float, unit_grad_sq: ArrayLike, *, lr: float, weight_decay: float) -> Floats:
    """‖w_t‖² of SGD under a sequence L_t = `unit_grad_sq`: x_{t+1} = (1−2ηλ) x_t + L_t η²/x_t (equation 130).

    Returns len(L) + 1 values, `initial` first.
    """
    norm_sq = check_number("initial", initial, low=0, low_open=True, cure="give the first ‖w‖²")
    keep, gain = 1 - 2 * lr * weight_decay, lr**2
    out = [norm_sq]
    for energy in _sequence("unit_grad_sq", unit_grad_sq):
        norm_sq = keep * norm_sq + energy * gain / norm_sq
        out.append(norm_sq)
    return np.array(out)


def sgdm_norm_map(
    initial: float, unit_grad_sq: ArrayLike, *, lr: float, weight_decay: float, momentum: float
) -> Floats:
    """(‖w_t‖², ⟨w_t, w_{t−1}⟩, ‖w_{t−1}‖²) of heavy-ball SGD, one row per step (equation 131).

    X_{t+1} = A X_t + (L_t η²/X_t[0]) e₁ from X₀ = (`initial`, `initial`, `initial`), L_t = `unit_grad_sq` the
    adjusted unit gradient's square, A = [[s², −2μs, μ²], [s, −μ, 0], [1, 0, 0]], s = 1 + μ − ηλ.
    """
    check_number("initial", initial, low=0, low_open=True, cure="give the first ‖w‖²")
    s, gain = 1 + momentum - lr * weight_decay, lr**2
    now = cross = before = float(initial)
    out = [(now, cross, before)]
    for energy in _sequence("unit_grad_sq", unit_grad_sq):
        now, cross, before = (
            s * s * now - 2 * momentum * s * cross + momentum**2 * before + energy * gain / now,
            s * now - momentum * cross,
            now,
        )
        out.append((now, cross, before))
    return np.array(out)


# Identities of norm growth (Li and Arora, appendix C)


def grown_norm_sq(
    update_sq: ArrayLike, *, momentum: float, initial: float, before_initial: float | None = None
) -> Floats:
    """R_t = ‖θ_t‖² of heavy-ball SGD without weight decay at a constant rate (theorem C.1, signs corrected).

    R_{t+1} = R₀ + Σ_{i≤t} (1−μ^{t−i+1})/(1−μ) (D_i + μ D_{i−1}) + μ (1−μ^{t+1})/(1−μ) (R₀ − R_{−1}).
    `update_sq` holds D_{−1}, D_0, …, D_t with D_i = ‖θ_{i+1} − θ_i‖²; `initial` is R₀ and `before_initial` R_{−1}
    (None: R₀, the run starts at rest). Returns R₁ … R_{t+1}.
    """
    updates = np.asarray(update_sq, dtype=np.float64)
    if updates.ndim != 1 or len(updates) < 2:
        raise ArgumentError("update_sq", "a sequence of D₋₁, D₀, …", updates.shape, "start at rest with D₋₁ = 0")
    first = float(initial)
    start_growth = 0.0 if before_initial is None else first - before_initial
    # The closed form solves equation 27, R_{t+1} − R_t = μ (R_t − R_{t−1}) + D_t + μ D_{t−1}, which sums in one pass.
    growth, total, out = start_growth, first, []
    for previous, current in itertools.pairwise(updates):
        growth = momentum * growth + current + momentum * previous
        total += growth
        out.append(total)
    return np.array(out)


def least_growth(step: ArrayLike, *, momentum: float, lr_ratio: float = 1.0, first_growth: float) -> Floats:
    """Theorem C.1's lower bound on R_{t+1} − R_t without weight decay: μ^{t+1} (η_t/η₀)(R₀ − R_{−1}).

    `lr_ratio` is η_t/η₀, `first_growth` is R₀ − R_{−1}.
    """
    power = np.asarray(step, dtype=np.float64) + 1
    return np.asarray(momentum**power * lr_ratio * first_growth)


def mean_update_ratio(*, lr: float, weight_decay: float, momentum: float) -> float:
    """Mean ‖update‖² over mean ‖w‖² of any stationary run on a scale-invariant loss: 2ηλ/(1+μ) (theorem C.2)."""
    return 2 * lr * weight_decay / (1 + momentum)


# Heavy ball on a user's loss, and its equivalent forms


def heavy_ball(
    gradient: Callable[[Floats], Floats],
    start: ArrayLike,
    *,
    lr: float,
    weight_decay: float,
    momentum: float = 0.0,
    steps: int,
) -> Floats:
    """w₀ … w_steps of v ← μv + ∇L(w) + λw, w ← w − ηv, from rest; `start` may hold many runs at once."""
    check_whole("steps", steps, low=0, cure="count the updates")
    w = np.array(start, dtype=np.float64)
    v = np.zeros_like(w)
    out = [w]
    for _ in range(steps):
        v = momentum * v + gradient(w) + weight_decay * w
        w = w - lr * v
        out.append(w)
    return np.array(out)


def unit_rate_form(start: ArrayLike, *, lr: float, weight_decay: float) -> tuple[Floats, float, float]:
    """(w₀/√η, 1, ηλ): the run at learning rate 1 that makes the same networks (Li, Lyu, Arora, appendix C).

    On a scale-invariant loss w' = w/√η obeys w'_{t+1} − (1+μ−x) w'_t + μ w'_{t−1} = −∇L(w'_t): apart from the start,
    only the intrinsic learning rate x = ηλ and μ matter.
    """
    root = math.sqrt(check_number("lr", lr, low=0, low_open=True, cure="give the learning rate"))
    return np.asarray(start, dtype=np.float64) / root, 1.0, lr * weight_decay


def single_sample_form(*, lr: float, batch_size: int) -> tuple[float, int]:
    """(η/B, B): learning rate and steps at batch size 1 that stand for one step at B = `batch_size`.

    Where the noise covariance falls as 1/B, the law of W^{B,η}_t is that of W^{1,η/B}_{Bt} (Li, Lyu, Arora,
    section 5), so the equilibrium depends on ηλ/B. Exact for the diffusion, not for batch norm.
    """
    return lr / check_whole("batch_size", batch_size, cure="count the samples of a batch"), batch_size


# Toys


def ratio_loss(w: Floats) -> Floats:
    """Li, Lyu and Arora's two-dimensional scale-invariant loss x²/(x² + y²) (figure 5a); `w` is (…, 2)."""
    return np.asarray(w[..., 0] ** 2 / np.sum(w**2, axis=-1))


def ratio_gradient(w: Floats) -> Floats:
    """∇ of `ratio_loss`: 2xy/(x²+y²)² · (y, −x). Heavy ball on it with weight decay is chaotic near the optimum."""
    x, y = w[..., 0], w[..., 1]
    scale = 2 * x * y / np.sum(w**2, axis=-1) ** 2
    return np.stack([scale * y, -scale * x], axis=-1)


@dataclass(frozen=True)
class ConeRun:
    """A run of Li and Arora's logistic example: angle to the true direction and ‖w‖, step by step."""

    angle: Floats
    norm: Floats

    @property
    def error(self) -> Floats:
        """Classification error of y = sign(x₁) on Gaussian inputs: angle/π."""
        return self.angle / math.pi


def logistic_cone(
    case: str, *, dim: int, batch_size: int, lr: float, weight_decay: float, steps: int, seed: int = 0
) -> ConeRun:
    """SGD on ln(1 + e^(−yu)), y = sign(x₁), x ~ N(0, I) (Li and Arora, section 3), from a random unit vector.

    `case`: `decay` (u = x·w with weight decay), `normalised` (u = x·w/‖w‖, no weight decay) or `both`.
    Weight decay alone or normalisation alone settles; together the direction leaves every small cone again and again.
    """
    check_choice("case", case, ("decay", "normalised", "both"))
    check_whole("dim", dim, low=2, cure="a direction needs two dimensions")
    rng = np.random.default_rng(seed)
    w = rng.standard_normal(dim)
    w /= np.linalg.norm(w)
    decay = 0.0 if case == "normalised" else weight_decay
    angles, norms = [], []
    for _ in range(steps + 1):
        norm = float(np.linalg.norm(w))
        angles.append(math.atan2(float(np.linalg.norm(w[1:])), float(w[0])))
        norms.append(norm)
        inputs = rng.standard_normal((batch_size, dim))
        labels = np.where(inputs[:, 0] >= 0, 1.0, -1.0)
        unit = w / norm
        margin = labels * (inputs @ (w if case == "decay" else unit))
        grad = -(labels / (1 + np.exp(margin))) @ inputs / batch_size
        if case != "decay":
            grad = (grad - (grad @ unit) * unit) / norm
        w = (1 - lr * decay) * w - lr * grad
    return ConeRun(np.array(angles), np.array(norms))


def cone_escape_steps(
    *,
    lr: float,
    weight_decay: float,
    cone: float,
    norm_sq: float,
    batch_size: int,
    dim: int,
    failure: float = 0.05,
) -> float:
    """Within so many steps the angle exceeds ε = `cone` at least once, with probability 1 − δ (theorem 3.1).

    ln(64 ‖w‖² ε √B / (η √(m−2))) / (2(ηλ − 2ε²)) + 9 ln(1/δ), m = `dim` ≥ 3, 2ε² < ηλ, δ = `failure`; counted from
    any step, with ‖w‖² = `norm_sq` there.
    """
    check_whole("dim", dim, low=3, cure="the theorem needs three dimensions")
    margin = lr * weight_decay - 2 * cone**2
    if margin <= 0:
        raise ArgumentError(
            "cone", f"below √(ηλ/2) = {math.sqrt(lr * weight_decay / 2):g}", cone, "ask about a narrower cone"
        )
    check_number("failure", failure, low=0, high=1, low_open=True, cure="0.05 means 5 %")
    shrink = 64 * norm_sq * cone * math.sqrt(batch_size) / (lr * math.sqrt(dim - 2))
    return max(0.0, math.log(shrink)) / (2 * margin) + 9 * math.log(1 / failure)


def _sequence(name: str, values: ArrayLike) -> list[float]:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1:
        raise ArgumentError(name, "one value per step", array.shape, "give a one-dimensional sequence")
    return [float(value) for value in array]
