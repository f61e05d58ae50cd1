"""The pure measures against float64 and against each other."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isogon.dynamics import measures
from isogon.dynamics.measure._sums import FlatSums, PiecewiseSums
from isogon.errors import ArgumentError

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def rotate(w: torch.Tensor, angle: float, scale: float = 1.0, seed: int = 1) -> torch.Tensor:
    """`w` turned by exactly `angle` in a random plane, in float64."""
    w = w.double()
    side = torch.randn(w.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(w.device)
    side -= torch.sum(side * w) / torch.sum(w * w) * w
    side *= torch.linalg.vector_norm(w) / torch.linalg.vector_norm(side)
    return scale * (math.cos(angle) * w + math.sin(angle) * side)


def weights(shape: tuple[int, ...] = (64, 33, 3, 3), seed: int = 0, device: str = "cpu") -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device)


def from_sums(sums: type[FlatSums] | type[PiecewiseSums], before: torch.Tensor, after: torch.Tensor) -> float:
    """The angle that the monitor would find."""
    parameter = before.clone()
    summer = sums([parameter])
    before = summer.before(None, [torch.zeros_like(parameter)], [])
    parameter.copy_(after)
    before_sq, _, change_sq, _, _, change_dot = summer.step(before)
    return measures.angle_from_sums(before_sq, change_sq, -change_dot).item()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("scale", [1.0, 0.999, 1.3])
@pytest.mark.parametrize("angle", [1e-6, 1e-4, 7e-3, 0.5, 1.5])
def test_angles_in_float32_are_right_to_a_percent(angle, scale, device):
    before = weights(device=device)
    after = rotate(before, angle, scale).float()
    assert measures.angle(before, after) == pytest.approx(angle, rel=0.01)


@pytest.mark.parametrize("sums", [PiecewiseSums, FlatSums])
@pytest.mark.parametrize("scale", [1.0, 0.9999])
@pytest.mark.parametrize("angle", [1e-6, 1e-4, 7e-3, 0.5, 1.5])
def test_the_monitors_sums_give_the_same_angle(angle, scale, sums):
    before = weights()
    after = rotate(before, angle, scale).float()
    assert from_sums(sums, before, after) == pytest.approx(angle, rel=0.01)


@given(angle=st.floats(1e-7, 3.1), scale=st.floats(0.5, 2), seed=st.integers(0, 99))
def test_angles_in_float64_are_right(angle, scale, seed):
    before = torch.randn(50, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    assert measures.angle(before, rotate(before, angle, scale, seed + 1)) == pytest.approx(angle, rel=1e-6)


def test_an_arccos_of_a_float32_cosine_would_be_noise():
    """Why the measure is not the textbook formula."""
    before = weights()
    after = rotate(before, 1e-5).float()
    cosine = torch.nn.functional.cosine_similarity(before.flatten(), after.flatten(), dim=0)
    assert abs(float(torch.arccos(cosine.clamp(-1, 1))) / 1e-5 - 1) > 0.1
    assert measures.angle(before, after) == pytest.approx(1e-5, rel=0.01)


def test_bfloat16_weights_are_measured_as_they_are_stored():
    before = weights().bfloat16()
    after = rotate(before, 0.2).bfloat16()
    exact = measures.angle(before.double(), after.double())
    assert measures.angle(before, after) == pytest.approx(exact, rel=1e-9)
    assert exact == pytest.approx(0.2, rel=0.01)
    assert from_sums(PiecewiseSums, before, after) == pytest.approx(exact, rel=1e-3)
    assert from_sums(FlatSums, before, after) == pytest.approx(exact, rel=1e-3)


def test_a_list_counts_as_one_long_vector():
    shapes = [(5, 4), (3,), (2, 2, 2)]
    a = [weights(s, i) for i, s in enumerate(shapes)]
    b = [weights(s, i + 10) for i, s in enumerate(shapes)]
    long_a, long_b = (torch.cat([t.flatten() for t in side]) for side in (a, b))
    for measure in (measures.angle, measures.distance, measures.dot, measures.radial, measures.unit_grad_sq):
        assert measure(a, b) == pytest.approx(measure(long_a, long_b), rel=1e-12)
    assert measures.norm(a) == pytest.approx(float(long_a.double().norm()), rel=1e-12)


def test_the_two_forms_of_the_adjusted_gradient_agree():
    """h from the buffer before the step, and from the one after it, for a gradient that is not tangent either."""
    w, g, v = (weights((40, 7), seed).double() for seed in range(3))
    momentum, decay = 0.9, 0.05
    after = momentum * v + g + decay * w
    before_form = measures.adjusted_grad_sq(w, g, v, momentum=momentum)
    assert measures.adjusted_grad_sq_after(w, g, after, weight_decay=decay) == pytest.approx(before_form, rel=1e-9)
    assert before_form != pytest.approx(measures.unit_grad_sq(w, g), rel=1e-3)


def test_rates_and_leaks_are_those_of_the_definitions():
    w, g = weights((30, 4)), weights((30, 4), 1)
    square = float((w.double() ** 2).sum())
    assert measures.effective_lr(w, lr=0.1) == pytest.approx(0.1 / square)
    assert measures.effective_lr_epoch(w, lr=0.1, batch_size=128, samples=50_000) == pytest.approx(
        0.1 / square * 50_000 / 128
    )
    assert measures.radial(w, 3 * w) == pytest.approx(1)
    tangent = g.double() - measures.dot(w, g) / square * w.double()
    assert abs(measures.radial(w, tangent)) < 1e-12
    assert math.isnan(measures.radial(w, torch.zeros_like(w)))


def test_angles_of_a_path_add_up_and_exceed_the_direct_one():
    w = weights((100,)).double()
    path = [rotate(w, 0.1 * i, seed=1) for i in range(6)]  # along one great circle
    assert measures.accumulated_angle(path) == pytest.approx(0.5, rel=1e-9)
    crooked = [w, rotate(w, 0.1, seed=2), rotate(w, 0.1, seed=3)]
    assert measures.accumulated_angle(crooked) > measures.angle(crooked[0], crooked[-1]) + 0.05
    assert measures.accumulated_angle([w]) == 0


def test_gradients_of_noise_and_of_signal_grow_as_they_should():
    """‖g‖ summed over k times the samples: √k for noise, k when all samples pull the same way (SMD figure 8)."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(1024, 500, generator=generator)
    assert measures.gradient_norm_ratio(noise.sum(0), noise[:256].sum(0)) == pytest.approx(2, rel=0.1)
    same = torch.ones(1024, 500)
    assert measures.gradient_norm_ratio(same.sum(0), same[:256].sum(0)) == pytest.approx(4)
    means = same.mean(0), same[:256].mean(0)
    assert measures.gradient_norm_ratio(*means, samples_ratio=4) == pytest.approx(4)


def test_a_summed_gradient_does_not_depend_on_how_it_is_batched(make_task):
    task = make_task(norm="group")  # batch norm would mix the samples
    task.model.double()
    x, y = task.inputs[:48].double(), task.targets[:48]

    def loss(inputs, targets):
        return torch.nn.functional.cross_entropy(task.model(inputs), targets)

    whole = measures.summed_gradient(task.parameters, loss, [(x, y)])
    pieces = measures.summed_gradient(task.parameters, loss, zip(x.split(20), y.split(20), strict=True))
    assert measures.distance(whole, pieces) < 1e-9 * measures.norm(whole)
    assert all(p.grad is None for p in task.parameters)


def test_shapes_that_differ_are_refused():
    with pytest.raises(ArgumentError, match="same shapes"):
        measures.angle(torch.ones(3), torch.ones(4))
    assert math.isnan(measures.angle(torch.zeros(3), torch.ones(3)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("channels_last", [False, True])
def test_both_ways_of_summing_agree_with_float64(dtype, channels_last):
    """The CPU's piecewise sums and the accelerators' flat ones, on tensors of all kinds, some without a gradient."""
    generator = torch.Generator().manual_seed(0)
    parameters = [torch.randn(s, generator=generator).to(dtype) for s in [(70, 3, 3, 3), (7,), (), (300, 500)]]
    if channels_last:
        parameters[0] = parameters[0].to(memory_format=torch.channels_last)
    gradients = [torch.randn_like(p) for p in parameters]
    buffers = [torch.randn_like(p) for p in parameters]
    moved = [p + 0.01 * torch.randn_like(p) for p in parameters]
    w, g, v, b = ([t.double() for t in side] for side in (parameters, gradients, buffers, moved))
    change = [x - y for x, y in zip(w, b, strict=True)]
    pairs = [(w, w), (g, g), (change, change), (w, g), (v, g), (change, b)]
    expected = np.array([[float((x * y).sum()) for x, y in zip(*pair, strict=True)] for pair in pairs])
    size = np.array([[float(x.norm() * y.norm()) for x, y in zip(*pair, strict=True)] for pair in pairs])
    expected[[1, 3, 4], 1] = 0  # where there will be no gradient
    for kind in (PiecewiseSums, FlatSums):
        now = [p.clone() for p in parameters]
        sums = kind(now)
        start = sums.copy()
        missing = [None if i == 1 else t for i, t in enumerate(gradients)]
        before = sums.before(None, missing, buffers)
        for copy, p in zip(sums.as_tensors(start), parameters, strict=True):
            assert torch.equal(copy, p.to(copy.dtype))
        for p, m in zip(now, moved, strict=True):
            p.copy_(m)
        table = sums.step(before)
        np.testing.assert_allclose(
            table.numpy() / size, expected / size, rtol=0, atol=1e-13 if dtype == torch.float64 else 1e-5
        )
        after_sq, change_sq, change_dot = sums.epoch(start)
        np.testing.assert_allclose(after_sq, [float((x * x).sum()) for x in b], rtol=1e-5)
        np.testing.assert_allclose(change_sq, table[2])
        np.testing.assert_allclose(change_dot, table[5])
        restored = sums.from_tensors([p.clone() for p in parameters])
        np.testing.assert_allclose(sums.epoch(restored)[1], table[2])
