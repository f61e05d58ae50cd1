"""Models written by people who know nothing of the checker's rules, and the truth about them.

Each module in `strangers/` has `build() -> (model, inputs)` and the truth as data: `JOINT_INVARIANT` (the
output does not change when all trainable parameters are scaled together), `INVARIANT_ALONE` (names of the
parameters that may be scaled by themselves) and `WHY`. The data is checked here by rescaling in float64, without
isogon: the checker is measured against the function a model computes, never against a rule.
"""

from __future__ import annotations

import copy
import functools
import importlib.util
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

Inputs = tuple[Tensor, ...]

TINY_EPS = 1e-30
SAME, DIFFERENT = 1e-9, 1e-6  # relative change of the output; a model between the two would prove nothing
POINTS = 3
FACTORS = (0.5, 3.0)


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"strangers_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # torch.export in strict mode looks a class's module up by name
    spec.loader.exec_module(module)
    return module


STRANGERS = [load(path) for path in sorted((Path(__file__).parent / "strangers").glob("*.py"))]
each_stranger = pytest.mark.parametrize("stranger", STRANGERS, ids=lambda m: m.__name__.removeprefix("strangers_"))


def build(stranger: ModuleType) -> tuple[nn.Module, Inputs]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model, inputs = stranger.build()
    return model, inputs


def in_double(model: nn.Module, inputs: Inputs) -> tuple[nn.Module, Inputs]:
    """A float64 copy in which no normalisation has an ε to speak of, be it torch's or written by hand."""
    model = copy.deepcopy(model).double()
    for module in model.modules():
        if hasattr(module, "eps"):
            module.eps = TINY_EPS  # type: ignore[assignment]
    return model, tuple(x.double() if x.is_floating_point() else x for x in inputs)


def output(model: nn.Module, parameters: dict[str, Tensor], inputs: Inputs) -> Tensor:
    """All outputs as one vector, with the same dropout masks each time and the buffers left alone."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(1)
        result = torch.func.functional_call(model, {**parameters, **buffers}, inputs)
    tensors: Iterable[Tensor] = [result] if isinstance(result, Tensor) else result
    return torch.cat([tensor.flatten().double() for tensor in tensors])


def unchanged(model: nn.Module, inputs: Inputs, points: list[dict[str, Tensor]], scaled: set[str]) -> bool:
    """Whether the output stays what it is when the named parameters are multiplied by a positive number."""
    worst = 0.0
    for point in points:
        before = output(model, point, inputs)
        for factor in FACTORS:
            there = {name: factor * p if name in scaled else p for name, p in point.items()}
            change = output(model, there, inputs) - before
            worst = max(worst, float(change.abs().max() / before.abs().max()))
    assert not SAME < worst < DIFFERENT, f"scaling {sorted(scaled)} changes the output by {worst:.1e}: undecided"
    return worst <= SAME


def truth(model: nn.Module, inputs: Inputs) -> tuple[bool, set[str]]:
    """(invariant under all trainable parameters together, names of those invariant alone), by rescaling.

    The parameters are moved a little first, because one that starts at zero does not show its scale.
    """
    model, inputs = in_double(model, inputs)
    trainable = {name for name, p in model.named_parameters() if p.requires_grad}
    points = []
    for seed in range(POINTS):
        random = torch.Generator().manual_seed(seed)
        point = {name: p.detach().clone() for name, p in model.named_parameters()}
        for name in sorted(trainable):
            point[name] += 0.1 * torch.randn(point[name].shape, generator=random, dtype=torch.float64)
        points.append(point)
    alone = {name for name in trainable if unchanged(model, inputs, points, {name})}
    return unchanged(model, inputs, points, trainable), alone


@each_stranger
def test_the_recorded_truth_is_what_rescaling_shows(stranger: ModuleType) -> None:
    joint, alone = truth(*build(stranger))
    assert joint == stranger.JOINT_INVARIANT
    assert alone == stranger.INVARIANT_ALONE


class Traces(NamedTuple):
    """All of a model and its inputs, and of the random numbers, that a check could change."""

    tensors: dict[str, Tensor]
    modes: dict[str, bool]
    parameters: dict[str, tuple[int, bool, int]]

    @classmethod
    def of(cls, model: nn.Module, inputs: Inputs) -> Traces:
        tensors = {**model.state_dict(), **{f"input {place}": x for place, x in enumerate(inputs)}}
        tensors |= {f"gradient of {name}": p.grad for name, p in model.named_parameters() if p.grad is not None}
        return cls(
            {"random": torch.get_rng_state(), **{name: tensor.clone() for name, tensor in tensors.items()}},
            {name: module.training for name, module in model.named_modules()},
            {name: (id(p), p.requires_grad, id(p.grad)) for name, p in model.named_parameters()},
        )


@pytest.fixture(scope="module")
def checked() -> Callable[[ModuleType], tuple[Any, Traces, Traces]]:
    """Stranger → what the checker says of it, and the model before and after; computed once."""
    # Imported late: the truth above must not depend on it.
    from isogon.symmetry import check

    @functools.cache
    def verdict(stranger: ModuleType) -> tuple[Any, Traces, Traces]:
        model, inputs = build(stranger)
        for p in model.parameters():
            p.grad = torch.full_like(p, 0.5) if p.requires_grad else None
        before = Traces.of(model, inputs)
        said = check(model, *inputs)
        return said, before, Traces.of(model, inputs)

    return verdict


@each_stranger
def test_check_agrees_on_all_parameters_together(stranger: ModuleType, checked: Callable[..., Any]) -> None:
    verdict, _, _ = checked(stranger)
    assert verdict.is_invariant == stranger.JOINT_INVARIANT, f"{stranger.WHY}\n{verdict}"
    assert str(verdict.joint) != "unknown", f"{stranger.WHY}\n{verdict}"


@each_stranger
def test_check_agrees_on_each_parameter_alone(stranger: ModuleType, checked: Callable[..., Any]) -> None:
    verdict, _, _ = checked(stranger)
    assert set(verdict.invariant) == stranger.INVARIANT_ALONE, f"{stranger.WHY}\n{verdict}"


@each_stranger
def test_check_has_something_to_say_about_every_parameter(stranger: ModuleType, checked: Callable[..., Any]) -> None:
    verdict, before, _ = checked(stranger)
    assert str(verdict).strip()
    for name, (_, trainable, _) in before.parameters.items():
        if trainable:
            assert verdict.explain(name).strip(), name


@each_stranger
def test_check_leaves_the_model_alone(stranger: ModuleType, checked: Callable[..., Any]) -> None:
    _, before, after = checked(stranger)
    assert after.modes == before.modes
    assert after.parameters == before.parameters
    assert after.tensors.keys() == before.tensors.keys()
    assert [name for name, tensor in after.tensors.items() if not torch.equal(tensor, before.tensors[name])] == []
