"""The stochastic differential equation of Li, Lyu and Arora: closed forms and a simulator.

G = ‖W‖², W̄ = W/‖W‖, x = ηλ (`intrinsic_lr`), time in steps. With Σ the noise covariance at unit norm,

    dW̄ = −(η/G)(∇L(W̄) dt + Σ^(1/2) dB) − (η²/2G²) Tr Σ W̄ dt           (6)
    dG/dt = −2x G + (η²/G) Tr Σ                                        (7)
    γ = (G/η)²,  dγ/dt = −4x γ + 2 Tr Σ,  effective learning rate γ^(−1/2)      (10)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from isogon.errors import ArgumentError, check_number, check_whole
from isogon.theory.optimizers import Floats


def inverse_square_rate(time: ArrayLike, *, initial: float, intrinsic_lr: float, noise_trace: float) -> Floats:
    """γ_t = e^(−4xt) γ₀ + (σ²/2x)(1 − e^(−4xt)), σ² = `noise_trace` = Tr Σ (equation 12); γ₀ + 2σ²t for x = 0.

    γ is the inverse square of the effective learning rate.
    """
    t = np.asarray(time, dtype=np.float64)
    if intrinsic_lr == 0:
        return np.asarray(initial + 2 * noise_trace * t)
    forgotten = -np.expm1(-4 * intrinsic_lr * t)
    return np.asarray(initial * (1 - forgotten) + noise_trace / (2 * intrinsic_lr) * forgotten)


def stationary_effective_lr(*, intrinsic_lr: float, noise_trace: float) -> float:
    """η/‖w‖² at equilibrium: γ^(−1/2) → √(2x)/σ (the paper prints the inverse)."""
    check_number("noise_trace", noise_trace, low=0, low_open=True, cure="an equilibrium needs noise")
    return math.sqrt(2 * intrinsic_lr / noise_trace)


@dataclass(frozen=True)
class Paths:
    """Simulated paths at the recorded times: `direction` (times, paths, dim), `norm_sq` G (times, paths)."""

    time: Floats
    direction: Floats
    norm_sq: Floats
    lr: float

    @property
    def inverse_square_rate(self) -> Floats:
        """γ = (G/η)² of each path."""
        return np.asarray((self.norm_sq / self.lr) ** 2)


def simulate(
    *,
    dim: int,
    paths: int,
    steps: int,
    lr: float,
    weight_decay: float,
    noise_trace: float | Callable[[Floats], Floats],
    gradient: Callable[[Floats], Floats] | None = None,
    noise_root: Callable[[Floats, Floats], Floats] | None = None,
    initial_direction: ArrayLike | None = None,
    initial_norm: float = 1.0,
    dt: float = 1.0,
    record_every: int = 1,
    seed: int = 0,
) -> Paths:
    """Euler–Maruyama paths of (W̄, G), all at once.

    `gradient` maps unit vectors (paths, dim) to ∇L there; None is pure noise. `noise_root` maps (unit vectors,
    standard normals) to Σ^(1/2)·normals; None is isotropic. Both are projected on the tangent space, as a
    scale-invariant loss has them. `noise_trace` is Tr Σ: a number, or a function of the unit vectors (paths,).
    `dt` is in steps of SGD.
    """
    check_whole("dim", dim, low=2, cure="a direction needs two dimensions")
    check_whole("paths", paths, cure="simulate at least one")
    check_whole("steps", steps, cure="simulate at least one")
    check_whole("record_every", record_every, cure="1 records every step")
    check_number("dt", dt, low=0, low_open=True, cure="1 is one step of SGD")
    check_number("initial_norm", initial_norm, low=0, low_open=True, cure="give the norm of the first weights")
    rng = np.random.default_rng(seed)
    start = rng.standard_normal((paths, dim)) if initial_direction is None else initial_direction
    direction = _unit(np.broadcast_to(np.asarray(start, dtype=np.float64), (paths, dim)))
    norm_sq = np.full(paths, float(initial_norm) ** 2)
    intrinsic_lr = lr * weight_decay

    times, directions, norms = [0.0], [direction], [norm_sq]
    for step in range(1, steps + 1):
        normal = rng.standard_normal((paths, dim)) * math.sqrt(dt)
        trace = np.asarray(noise_trace(direction) if callable(noise_trace) else noise_trace, dtype=np.float64)
        kick = np.sqrt(trace[..., None] / (dim - 1)) * normal if noise_root is None else noise_root(direction, normal)
        if gradient is not None:
            kick = kick + gradient(direction) * dt
        rate = lr / norm_sq
        # −(η²/2G²) Tr Σ W̄ dt only keeps W̄ on the sphere, and returning it there by hand is its discrete twin.
        direction = _unit(direction - rate[:, None] * _tangent(kick, direction))
        norm_sq = norm_sq + (-2 * intrinsic_lr * norm_sq + lr * rate * trace) * dt
        if np.any(norm_sq <= 0):
            raise ArgumentError("dt", "small enough that the squared norm stays positive", dt, "lower it")
        if step % record_every == 0:
            times.append(step * dt)
            directions.append(direction)
            norms.append(norm_sq)
    return Paths(np.array(times), np.array(directions), np.array(norms), lr)


def _tangent(vectors: Floats, direction: Floats) -> Floats:
    return np.asarray(vectors - np.sum(vectors * direction, axis=-1, keepdims=True) * direction)


def _unit(vectors: Floats) -> Floats:
    return np.asarray(vectors / np.linalg.norm(vectors, axis=-1, keepdims=True))
