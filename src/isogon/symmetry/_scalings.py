"""The oracle of `symmetries`: scale the weights by several powers at once and look."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from isogon.errors import first_line
from isogon.symmetry._probe import NOT_INVARIANT, Oracle, judge
from isogon.symmetry._trace import Traced


class DisagreementWarning(UserWarning):
    """The numerical oracle contradicts a static answer: a bug in a rule, worth reporting."""


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


def verify_scalings(traced: Traced, basis: Sequence[Mapping[str, Fraction]], parts: Mapping[str, Part]) -> str:
    """What measuring says of each vector of `basis`, in a sentence; a contradiction is warned of as well."""
    try:
        oracle = Oracle(traced.model, traced.inputs, traced.kwargs)
        if oracle.is_blind():
            return "could not be verified numerically (the output is zero, or rounding errors decide what it is)"
        names = list(parts)
        powers = np.array([[float(vector.get(name, 0)) for name in names] for vector in basis]).reshape(-1, len(names))
        sums = np.abs(radial_products(oracle, parts, 2) @ powers.T).max(axis=0, initial=0.0)
        wrong = [number for number, total in enumerate(sums) if judge(total, oracle.rounded) == NOT_INVARIANT]
        # All of them at once, each by a factor of its own; where that changes something, one by one.
        factors = np.random.default_rng(0).uniform(-1.0, 1.0, len(basis))
        moved = oracle.deviation(_factors(oracle, parts, names, factors @ powers))
        if judge(moved, oracle.rounded) == NOT_INVARIANT:
            each = [oracle.deviation(_factors(oracle, parts, names, row)) for row in powers]
            wrong += [number for number, change in enumerate(each) if judge(change, oracle.rounded) == NOT_INVARIANT]
    except Exception as error:  # whatever a model raises in double precision
        return f"could not be verified numerically ({type(error).__name__}: {first_line(error)})"
    if wrong:
        listed = "; ".join(", ".join(basis[number]) for number in sorted(set(wrong))[:5])
        warnings.warn(
            f"isogon's rules and its measurement disagree on {traced.name}; please report it: {listed}",
            DisagreementWarning,
            stacklevel=3,
        )
        return f"DISAGREEMENT on {len(set(wrong))} of {len(basis)}: {listed}"
    return (
        f"verified numerically: Σ a⟨w, g⟩ is at most {sums.max(initial=0.0):.0e} of the output, which changes by "
        f"{moved:.0e} when all are scaled"
    )


def _factors(
    oracle: Oracle, parts: Mapping[str, Part], names: Sequence[str], powers: npt.NDArray[np.float64]
) -> dict[str, float | Tensor]:
    """2 to the powers, by parameter; a tensor where its parts have powers of their own."""
    factors: dict[str, float | Tensor] = {}
    for name, power in zip(names, powers, strict=True):
        part, factor = parts[name], 2.0 ** float(power)
        weight = oracle.parameters[part.parameter]
        if part.channels is None:
            factors[part.parameter] = factor
            continue
        shape = [weight.shape[i] if i == part.dim else 1 for i in range(weight.ndim)]
        line = factors.setdefault(part.parameter, torch.ones(shape, dtype=torch.float64, device=weight.device))
        assert isinstance(line, Tensor)
        line.index_fill_(part.dim, torch.tensor(part.channels, device=weight.device), factor)
    return factors
