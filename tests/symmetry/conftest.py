"""What the tests of this room share: small models from functions, and static answers confirmed by the oracle."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from isogon.symmetry import Degree, ScaleMap, Symmetries, check
from isogon.symmetry._probe import Oracle
from isogon.symmetry._scale_map import JOINT
from isogon.symmetry._trace import trace
from isogon.symmetry.groups._scalings import radial_products

FACTORS = (0.5, 2.0, 3.0)
# How far weights are drawn from those of the model.
_DRAWS = (1.0, 3.0, 1.0, 10.0, 30.0)


class Function(nn.Module):
    """A model from a function of (self, inputs…), with parameters and buffers by name."""

    def __init__(self, function: Callable[..., Any], **tensors: Any) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(7)
        self.function = function
        for name, value in tensors.items():
            if isinstance(value, nn.Module):
                self.add_module(name, value)
            elif isinstance(value, tuple):
                self.register_parameter(name, nn.Parameter(torch.randn(value, generator=generator)))
            elif isinstance(value, nn.Parameter):
                self.register_parameter(name, value)
            else:
                self.register_buffer(name, value)

    def forward(self, *inputs: Any) -> Any:
        return self.function(self, *inputs)


def _gap(base: list[Tensor], changed: list[Tensor], factor: float) -> float:
    """How far `changed` is from `factor` times `base`, relative to it."""
    worst = 0.0
    for f, g in zip(base, changed, strict=True):
        want = f * factor
        gap = torch.where(want == g, torch.zeros_like(want), want - g).norm()
        worst = max(worst, float(gap) / (float(want[torch.isfinite(want)].norm()) or 1.0))
    return worst


def _outputs(oracle: Oracle, names: list[str]) -> dict[float, list[Tensor]] | None:
    """The outputs with the parameters `names` at several scales; None where they overflow."""
    parameters = [oracle.parameters[name] for name in names]
    before = [p.detach().clone() for p in parameters]
    found = {}
    with torch.no_grad():
        for factor in (1.0, *FACTORS):
            for p, old in zip(parameters, before, strict=True):
                p.copy_(old * factor)
            found[factor] = [x.double() for x in oracle.outputs()]
        for p, old in zip(parameters, before, strict=True):
            p.copy_(old)
    finite = all(bool(torch.isfinite(x).all()) for xs in found.values() for x in xs)
    return found if finite else None


def _contradiction(oracle: Oracle, names: list[str], degree: Degree) -> str | None:
    """What measuring says against `degree`, if anything: a number d claims that f(c·w) = c^d · f(w)."""
    at = _outputs(oracle, names)
    if at is None or degree.is_unknown:
        return None
    if degree.kind == "any":
        return "claimed zero" if any(bool(x.any()) for xs in at.values() for x in xs) else None
    if degree.kind == "number":
        gap = max(_gap(at[1.0], at[c], c ** float(degree)) for c in FACTORS)
        return f"claimed degree {degree}, off by {gap:.1e}" if gap > 1e-7 else None
    size, doubled = (sum(float(x.norm()) for x in at[c]) for c in (1.0, 2.0))
    if size == 0 or doubled == 0:
        return None
    fitted = math.log2(doubled / size)
    gap = max(_gap(at[1.0], at[c], c**fitted) for c in FACTORS)
    # Not more than rounding: layers of attention make tokens alike, and a query's scale then changes hardly anything.
    return f"claimed not homogeneous, has degree {fitted:.4f} within {gap:.1e}" if gap < 1e-13 else None


def contradictions(scale_map: ScaleMap, model: nn.Module, *inputs: Any) -> dict[str, str]:
    """Every answer of the map, jointly and alone, that measuring contradicts.

    A model can be homogeneous at some weights by luck (where every ReLU is linear, say), so that "not homogeneous"
    counts as contradicted only if five more draws of the weights, far apart, say so too, and the weights as they are
    with every small constant in place. Attention needs wide ones: near first weights it is nearly a mean, whose sign
    no token changes.
    """
    oracle = Oracle(model, inputs, {})
    if oracle.is_blind():
        return {}
    others: list[Oracle] = []
    found: dict[str, str] = {}
    for name, degree in {JOINT: scale_map.joint, **scale_map.alone}.items():
        names = list(oracle.parameters) if name == JOINT else [name]
        said = _contradiction(oracle, names, degree)
        if said and degree.kind == "number":
            # Where a constant is normalised by hand, rounding errors are all that is left without an ε.
            again = _outputs(Oracle(model, inputs, {}, small=False), names)
            gaps = [_gap(again[1.0], again[c], c ** float(degree)) for c in FACTORS] if again else [0.0]
            said = said if max(gaps) > 1e-3 else None
        if said and degree.kind == "not homogeneous":
            others = others or [
                *(Oracle(model, inputs, {}, noise=noise, seed=seed) for seed, noise in enumerate(_DRAWS, start=1)),
                Oracle(model, inputs, {}, small=False),
            ]
            if not all(_contradiction(other, names, degree) for other in others):
                said = None
        if said:
            found[name] = said
    return found


@pytest.fixture
def function() -> type[Function]:
    return Function


@pytest.fixture
def confirmed() -> Callable[..., ScaleMap]:
    """`check`, with every number and every "not homogeneous" confirmed by rescaling in double precision."""

    def run(model: nn.Module, *inputs: Any) -> ScaleMap:
        scale_map = check(model, *inputs)
        assert contradictions(scale_map, model, *inputs) == {}
        return scale_map

    return run


@pytest.fixture
def contradicted() -> Callable[..., dict[str, str]]:
    return contradictions


def _rank(model: nn.Module, inputs: tuple[Any, ...], kwargs: dict[str, Any], answer: Symmetries) -> int | None:
    """How many independent sets of powers measuring allows: Σ a⟨w, g⟩ = 0 at many weights, in many directions.

    None where nothing can be measured: an output of zeros.
    """
    traced = trace(model, inputs, kwargs)
    rows: list[Any] = []
    rounded = False
    for seed in range(40):
        oracle = Oracle(traced.model, traced.inputs, traced.kwargs, noise=0.5, seed=seed)
        rows += list(radial_products(oracle, answer.parts, 4, seed=seed))
        rounded |= oracle.rounded
        if len(rows) >= len(answer.names) + 6:
            break
    else:
        return None
    table = np.array(rows)
    if not np.isfinite(table).all():
        return None
    largest = np.abs(table).max(axis=0)
    # Outputs have norm 1. Weights matter more or less; what is at rounding for a weight is 0.
    matters = largest > (1e-5 if rounded else 1e-9)
    if not matters.any():
        return len(answer.names)
    table = table[:, matters] / largest[matters]
    values = np.linalg.svd(table, compute_uv=False)
    return int((~matters).sum() + (values < (1e-5 if rounded else 1e-11) * values[0]).sum())


@pytest.fixture
def measured_rank() -> Callable[..., int | None]:
    return _rank
