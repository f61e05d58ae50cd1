"""The oracle of `symmetries`: scale the weights by several powers at once and look."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from isogon.errors import first_line
from isogon.symmetry._probe import NOT_INVARIANT, DisagreementWarning, Oracle, judge
from isogon.symmetry._reasons import LARGEST_EPS
from isogon.symmetry._trace import Traced

# In place of ε where the oracle's usual one lets rounding errors through.
_LARGER_EPS = 1e-14


@dataclass(frozen=True)
class Part:
    """A parameter, or the channels of one of its dimensions that scale together."""

    parameter: str
    dim: int = 0
    channels: tuple[int, ...] | None = None

    def of(self, tensor: Tensor) -> Tensor:
        if self.channels is None:
            return tensor
        return tensor.index_select(self.dim, torch.tensor(self.channels, device=tensor.device))


def radial_products(oracle: Oracle, parts: Mapping[str, Part], count: int, seed: int = 1) -> npt.NDArray[np.float64]:
    """⟨w_p, ∇⟨r, f⟩⟩ / ‖f‖ for each part p (columns) and `count` random r (rows); Σ a_p of them is 0 in a symmetry."""
    rows = [
        [float(part.of(tensors[part.parameter]).sum()) if part.parameter in tensors else 0.0 for part in parts.values()]
        for tensors in oracle.products(count, seed)
    ]
    return np.array(rows).reshape(len(rows), len(parts))


def verify_scalings(
    traced: Traced,
    basis: Sequence[Mapping[str, Fraction]],
    parts: Mapping[str, Part],
    largest_eps: float = LARGEST_EPS,
) -> str:
    """What measuring says of each vector of `basis`, in a sentence; a contradiction is warned of as well."""
    powers = np.array([[float(vector.get(name, 0)) for name in parts] for vector in basis]).reshape(
        len(basis), len(parts)
    )
    try:
        ask = partial(Oracle, traced.model, traced.inputs, traced.kwargs, largest_eps=largest_eps)
        oracle = ask()
        if oracle.is_blind():
            return "could not be verified numerically (the output is zero, or rounding errors decide what it is)"
        wrong, largest, moved = _measure(oracle, powers, parts)
        if wrong:  # a norm of something constant blows rounding errors up, less so with a larger ε
            oracle = ask(tiny=_LARGER_EPS)
            wrong &= _measure(oracle, powers, parts)[0]
    except Exception as error:  # whatever a model raises in double precision
        return f"could not be verified numerically ({type(error).__name__}: {first_line(error)})"
    if wrong:
        listed = "; ".join(", ".join(basis[number]) for number in sorted(wrong)[:5])
        warnings.warn(
            f"isogon's rules and its measurement disagree on {traced.name}; please report it: {listed}",
            DisagreementWarning,
            stacklevel=3,
        )
        return f"DISAGREEMENT on {len(wrong)} of {len(basis)}: {listed}"
    return (
        f"verified numerically: Σ a⟨w, g⟩ is at most {largest:.0e} of the output, which changes by {moved:.0e} when "
        "all are scaled"
    )


def _measure(
    oracle: Oracle, powers: npt.NDArray[np.float64], parts: Mapping[str, Part]
) -> tuple[set[int], float, float]:
    """Which rows of `powers` change the output, the largest Σ a⟨w, g⟩, and the change when all are scaled."""
    sums = np.abs(radial_products(oracle, parts, 2) @ powers.T).max(axis=0, initial=0.0)
    doubtful = {number for number, total in enumerate(sums) if judge(total, oracle.rounded) == NOT_INVARIANT}
    # All of them at once, each by a factor of its own.
    together = np.random.default_rng(0).uniform(-1.0, 1.0, len(powers)) @ powers
    moved = oracle.deviation(_factors(oracle, parts, together))
    if judge(moved, oracle.rounded) == NOT_INVARIANT:
        doubtful = set(range(len(powers)))
    # Values decide: a gradient misses what is detached.
    changes = {number: oracle.deviation(_factors(oracle, parts, powers[number])) for number in sorted(doubtful)}
    wrong = {number for number, change in changes.items() if judge(change, oracle.rounded) == NOT_INVARIANT}
    return wrong, float(sums.max(initial=0.0)), moved


def _factors(oracle: Oracle, parts: Mapping[str, Part], powers: npt.NDArray[np.float64]) -> dict[str, float | Tensor]:
    """2 to the powers, by parameter; a tensor where its parts have powers of their own."""
    factors: dict[str, float | Tensor] = {}
    for part, power in zip(parts.values(), powers, strict=True):
        factor = 2.0 ** float(power)
        weight = oracle.parameters[part.parameter]
        if part.channels is None:
            factors[part.parameter] = factor
            continue
        shape = [weight.shape[i] if i == part.dim else 1 for i in range(weight.ndim)]
        line = factors.setdefault(part.parameter, torch.ones(shape, dtype=torch.float64, device=weight.device))
        assert isinstance(line, Tensor)
        line.index_fill_(part.dim, torch.tensor(part.channels, device=weight.device), factor)
    return factors
