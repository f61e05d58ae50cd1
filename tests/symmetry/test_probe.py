"""The oracle itself: it must see what is there, and say so where it cannot see."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isogon.symmetry import check, measure
from isogon.symmetry._probe import Oracle


def data() -> Tensor:
    return torch.randn(8, 5, generator=torch.Generator().manual_seed(0))


def verdicts(model: nn.Module, *inputs: Any, **options: Any) -> dict[str, str]:
    return {name: found.verdict for name, found in measure(model, *inputs, **options).items()}


def test_it_tells_invariant_from_not() -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    assert verdicts(model, data()) == {
        "joint": "not invariant",
        "0.weight": "invariant",
        "0.bias": "invariant",
        "1.weight": "not invariant",
        "1.bias": "not invariant",  # although it starts at zero
        "2.weight": "not invariant",
        "2.bias": "not invariant",
    }


@pytest.mark.parametrize("eps", [1e-5, 1e-1])
@pytest.mark.parametrize(
    "norm",
    [
        lambda eps: nn.BatchNorm1d(4, eps=eps, affine=False),
        lambda eps: nn.LayerNorm(4, eps=eps, elementwise_affine=False),
        lambda eps: nn.GroupNorm(2, 4, eps=eps, affine=False),
        lambda eps: nn.RMSNorm(4, eps=eps, elementwise_affine=False),
    ],
)
def test_the_epsilon_of_layers_does_not_count(norm: Any, eps: float) -> None:
    model = nn.Sequential(nn.Linear(5, 4, bias=False), norm(eps))
    assert set(verdicts(model, data()).values()) == {"invariant"}


def test_the_epsilon_of_functions_does_not_count(function: Any) -> None:
    functions = [
        lambda m, x: F.layer_norm(x @ m.w, (4,)),
        lambda m, x: F.batch_norm(x @ m.w, None, None, training=True),
        lambda m, x: F.normalize(x @ m.w, eps=1e-2),
        lambda m, x: x @ m.w / ((x @ m.w).std() + 1e-3),
        lambda m, x: x @ m.w / (x @ m.w).abs().mean().clamp(min=1e-3),
        lambda m, x: F.cosine_similarity(x @ m.w, x[:, :4], eps=1e-2),
    ]
    for body in functions:
        assert verdicts(function(body, w=(5, 4)), data())["w"] == "invariant"
    shifted = function(lambda m, x: F.normalize(x @ m.w + 1e-3), w=(5, 4))
    assert verdicts(shifted, data())["w"] == "invariant"
    assert verdicts(shifted, data(), small=False)["w"] == "not invariant"


def test_random_numbers_and_buffers_are_the_same_at_every_scale() -> None:
    model = nn.Sequential(nn.Linear(5, 40), nn.BatchNorm1d(40, affine=False), nn.Dropout(0.5))
    assert set(verdicts(model, data()).values()) == {"invariant"}
    moving = nn.utils.parametrizations.spectral_norm(nn.Linear(5, 4, bias=False))
    assert set(verdicts(moving, data()).values()) == {"invariant"}  # its power iteration moves buffers at each call


def test_values_decide_where_gradients_are_cut(function: Any) -> None:
    hidden = function(lambda m, x: F.normalize(x @ m.w) * m.s.detach(), w=(5, 4), s=())
    wrong = {"joint": "invariant", "w": "invariant", "s": "invariant"}
    found = measure(hidden, data(), expected=wrong)
    assert found["s"].radial == 0
    assert (found["s"].verdict, found["w"].verdict) == ("not invariant", "invariant")


def test_confirmed_answers_are_not_rescaled_one_by_one() -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4))
    expected = {"0.weight": "invariant", "0.bias": "invariant", "1.weight": "not invariant", "1.bias": "invariant"}
    found = measure(model, data(), expected=expected)
    assert {name for name, m in found.items() if m.deviation == m.deviation} == {"joint", "1.bias"}
    assert found["1.bias"].verdict == "not invariant"


def test_it_says_when_it_sees_nothing(function: Any) -> None:
    dead = function(lambda m, x: F.relu(x.abs() @ -m.w.abs()), w=(5, 4))
    noise = function(lambda m, x: F.layer_norm((x @ m.w)[:, :1].expand(-1, 4) + 0.1, (4,)), w=(5, 4))
    for model in (dead, noise):
        assert set(verdicts(model, data()).values()) == {"inconclusive"}


def test_single_precision_inside_the_model_widens_the_margin(function: Any) -> None:
    model = function(lambda m, x: F.layer_norm((x.float() @ m.w.float()), (4,)), w=(5, 4))
    assert set(verdicts(model, data()).values()) == {"invariant"}


def test_constants_of_the_default_type_are_made_in_double_precision(function: Any) -> None:
    model = function(lambda m, x: F.normalize(F.linear(x, m.w) @ torch.ones(4, 3)), w=(4, 5))
    assert set(verdicts(model, data()).values()) == {"invariant"}
    assert torch.get_default_dtype() == torch.float32


def test_the_radial_derivative_is_eulers(function: Any) -> None:
    """For f of degree d, ⟨w, ∇⟨r, f⟩⟩ = d · ⟨r, f⟩, here with one output, so that |⟨r, f⟩| / ‖f‖ = 1."""
    for power in (1, 2, 3):
        model = function(lambda m, x, p=power: ((x @ m.w) ** p).sum(), w=(5,))
        assert Oracle(model, (data(),), {}).radial()["w"] == pytest.approx(power)


class DrawsMasks(nn.Module):
    """Leaves out columns at random, by numpy's numbers, as SpecAugment does."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 4, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        kept = torch.from_numpy(np.random.rand(5) > 0.5).to(x) * random.choice([1.0, 2.0])
        return F.layer_norm(self.linear(x * kept + 1), (4,))


def test_numbers_that_numpy_and_python_draw_are_the_same_at_every_scale() -> None:
    before = np.random.get_state()[1].tolist(), random.getstate()
    assert set(verdicts(DrawsMasks(), data()).values()) == {"invariant"}
    assert before == (np.random.get_state()[1].tolist(), random.getstate())


def test_weights_too_small_to_matter_are_looked_at_again_in_another_size() -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    with torch.no_grad():
        model[0].weight.mul_(1e-12)  # beside its bias rounding hides it
    answer = check(model, data(), verify=True)
    assert answer.alone["0.weight"].verdict == "not invariant"
    assert (answer.verification, answer.disagreements) == ("verified numerically in double precision", ())


def test_weights_so_small_that_the_epsilon_matters_contradict_nothing() -> None:
    model = nn.Sequential(nn.Linear(5, 4, bias=False), nn.LayerNorm(4))
    with torch.no_grad():
        model[0].weight.mul_(1e-10)
    assert measure(model, data())["0.weight"].verdict == "not invariant"
    answer = check(model, data(), verify=True)
    assert answer.disagreements == ()
    assert (answer.alone["0.weight"].verdict, answer.measured["0.weight"]) == ("invariant", "inconclusive")


def test_what_is_clear_is_not_measured_further(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    outputs = Oracle.outputs
    monkeypatch.setattr(Oracle, "outputs", lambda self: calls.append(1) or outputs(self))
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    measure(model, data())
    # The outputs as they are, twice for gradients and rounding; what is invariant in two calls for all of it; each of
    # the others, and all together, at one scale.
    assert len(calls) <= 3 + 2 + 5
