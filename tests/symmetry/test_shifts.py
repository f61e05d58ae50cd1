"""What becomes of x + p where operations remove a shift, keep it, or may do either: then no answer may be certain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

NOT, UNKNOWN = "not homogeneous", "unknown"
Function = Callable[[Tensor, Tensor], Tensor]
ORDER, LATER_HALF = torch.tensor([2, 0, 1, 3]), torch.tensor([0.0, 0.0, 1.0, 1.0]).view(4, 1, 1)
DIFFERENCES = torch.eye(4) - torch.eye(4).roll(1, 0)


def swapped(x: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=1)
    return torch.cat([second, first], dim=1)


def half(x: Tensor, p: Tensor) -> Tensor:
    """Shifted in its first half alone."""
    return torch.cat([x[:, :2] + p, x[:, 2:]], dim=1)


def logged(x: Tensor, p: Tensor) -> Tensor:
    return ((x * p).abs() + 1).log()


# Of x with the shape (5, 4, 4, 4) and one number p: the answer.
CASES: dict[str, tuple[Function, str]] = {
    "softmax": (lambda x, p: (x + p).softmax(1), "0"),
    "nothing": (lambda x, p: x + p, NOT),
    "ReLU": (lambda x, p: F.relu(swapped(x + p)), NOT),
    # parts of one tensor, joined
    "joined, nothing": (lambda x, p: swapped(x + p), NOT),
    "joined, softmax": (lambda x, p: swapped(x + p).softmax(1), UNKNOWN),
    "joined, log softmax": (lambda x, p: swapped(x + p).log_softmax(1), UNKNOWN),
    "joined, softmax over another dimension": (lambda x, p: swapped(x + p).softmax(2), "0"),
    "joined, deviation": (lambda x, p: swapped(x + p).std(1), UNKNOWN),
    "joined, layer norm": (lambda x, p: F.layer_norm(swapped(x + p), (4, 4, 4)), UNKNOWN),
    "joined, minus the mean": (lambda x, p: (lambda y: y - y.mean(1, keepdim=True))(swapped(x + p)), UNKNOWN),
    "joined, minus the largest": (lambda x, p: (lambda y: y - y.amax(1, keepdim=True))(swapped(x + p)), UNKNOWN),
    "joined, sorted, softmax": (lambda x, p: swapped(x + p).sort(1)[0].softmax(1), UNKNOWN),
    "joined, order": (lambda x, p: swapped(x + p).argsort(1) * x, UNKNOWN),
    "joined, pooled, softmax": (lambda x, p: F.max_pool3d(swapped(x + p), 2, 1).softmax(1), UNKNOWN),
    "two sums with one shift, joined, softmax": (
        lambda x, p: torch.cat([x + p, x.cos() + p], 1).softmax(1),
        UNKNOWN,
    ),
    "two sums with one shift, stacked, softmax": (
        lambda x, p: torch.stack([x + p, x.cos() + p]).softmax(0),
        UNKNOWN,
    ),
    # a part with the shift beside one without
    "half": (half, NOT),
    "half, softmax": (lambda x, p: half(x, p).softmax(1), NOT),
    "half, the other half": (lambda x, p: half(x, p)[:, 2:], "0"),
    "half, the other half by indices": (lambda x, p: half(x, p)[:, torch.tensor([2, 3])], UNKNOWN),
    "half, the other half by a mask": (lambda x, p: half(x, p) * LATER_HALF, UNKNOWN),
    "half, the other half by a product": (lambda x, p: half(x, p).mT @ LATER_HALF[:, 0].to(x), UNKNOWN),
    "half, and the other half": (lambda x, p: (half(x, p) + half(x, p).flip(1)).softmax(1), UNKNOWN),
    # picked and compared
    "indices, nothing": (lambda x, p: (x + p)[:, ORDER], NOT),
    "indices, softmax": (lambda x, p: (x + p)[:, ORDER].softmax(1), UNKNOWN),
    "indices, minus the mean": (
        lambda x, p: (lambda y: y - y.mean(1, keepdim=True))((x + p)[:, ORDER]),
        UNKNOWN,
    ),
    "choice": (lambda x, p: torch.where(torch.eye(4) > 0, x + p, x.cos() + p).softmax(1), UNKNOWN),
    "larger of two": (lambda x, p: torch.maximum(x + p, x.cos() + p).softmax(1), UNKNOWN),
    "which is larger": (lambda x, p: ((x + p) > (x.cos() + p)).float(), UNKNOWN),
    "padded and cropped": (lambda x, p: F.pad(x + p, (1, 1))[..., 1:-1].softmax(3), UNKNOWN),
    # taken from each other
    "difference": (lambda x, p: (x + p) - (x.cos() + p), UNKNOWN),
    "difference, reversed": (lambda x, p: torch.rsub(x + p, x.cos() + p), UNKNOWN),
    "difference by a negative factor": (lambda x, p: torch.add(x + p, x.cos() + p, alpha=-1), UNKNOWN),
    "difference by a sum": (lambda x, p: (x + p) + -(x.cos() + p), UNKNOWN),
    "difference by a product": (lambda x, p: (x + p) * -0.5 + (x.cos() + p) * 0.5, UNKNOWN),
    "sum of two turned": (lambda x, p: -(x + p) + -(x.cos() + p), NOT),
    "sum": (lambda x, p: (x + p) + (x.cos() + p), NOT),
    "difference, squared": (lambda x, p: F.mse_loss(x + p, x.cos() + p), UNKNOWN),
    "distances": (lambda x, p: torch.cdist(x + p, x.cos() + p), UNKNOWN),
    "differences by a matrix": (lambda x, p: (x + p) @ DIFFERENCES.to(x), UNKNOWN),
    "differences by a convolution": (lambda x, p: F.conv2d(x + p, DIFFERENCES.to(x).repeat(4, 4, 1, 1)), UNKNOWN),
    "minus log Σ exp": (lambda x, p: (lambda y: y - y.logsumexp(1, keepdim=True))(x + p), "0"),
    "log Σ exp": (lambda x, p: (x + p).logsumexp(1), NOT),
    # through a logarithm, which an exponential may undo
    "logarithm": (lambda x, p: logged(x, p), NOT),
    "logarithm, cosine": (lambda x, p: logged(x, p).cos(), NOT),
    "logarithm, softmax": (lambda x, p: logged(x, p).softmax(1), UNKNOWN),
    "logarithm, softmax, layer norm": (lambda x, p: F.layer_norm(logged(x, p).softmax(3), (4,)), UNKNOWN),
    "logarithm, softmax, deviation": (lambda x, p: F.normalize(logged(x, p).softmax(1).std(1), dim=0), UNKNOWN),
    "logarithm, moved, exponential": (lambda x, p: F.layer_norm((2 * logged(x, p).flip(1) - 1).exp(), (4,)), UNKNOWN),
    "logarithm, power": (lambda x, p: F.layer_norm(2.0 ** logged(x, p), (4,)), UNKNOWN),
    "logarithm, log Σ exp": (lambda x, p: logged(x, p).logsumexp(1), UNKNOWN),
    "logarithm of a sum": (lambda x, p: F.layer_norm((x * p).abs().log1p().softmax(3), (4,)), UNKNOWN),
    "logarithm of a sum, undone": (lambda x, p: (x * p).abs().log1p().expm1(), UNKNOWN),
    "logarithm, gate": (lambda x, p: F.glu(torch.cat([x, -logged(x, p)], 1), 1).reciprocal().std(1), UNKNOWN),
    "logarithm, loss": (lambda x, p: F.poisson_nll_loss(logged(x, p), 0 * x, reduction="none").std(1), UNKNOWN),
    "loss, exponential": (
        lambda x, p: F.binary_cross_entropy(x.sigmoid() * p.abs() / 50, x * 0 + 1, reduction="none").neg().exp(),
        UNKNOWN,
    ),
    "inverse, exponentials": (lambda x, p: F.normalize((x * p).asinh().sinh().std(1), dim=0), UNKNOWN),
    "beside what is known": (lambda x, p: torch.cat([x * p, (x * p).asinh().sinh()], 1), UNKNOWN),
    "of what is not homogeneous": (lambda x, p: (x * p).cos().abs().log().softmax(1), NOT),
    "pure logarithm, running log Σ exp": (
        lambda x, p: (lambda y: y - y.mean(1, keepdim=True))((x * p).abs().log().logcumsumexp(1)),
        "0",
    ),
    "pure logarithm, softmax": (lambda x, p: (x * p).abs().log().softmax(1), "0"),
    "pure logarithm, undone": (lambda x, p: (x * p).abs().log().exp(), UNKNOWN),
    "pure logarithm, sine": (lambda x, p: (x * p).abs().log().sin(), NOT),
}


@pytest.mark.parametrize("name", CASES)
def test_only_what_is_certain_is_said_of_a_shift(name: str, function: Any, confirmed: Callable[..., Any]) -> None:
    body, expected = CASES[name]
    x = torch.randn(5, 4, 4, 4, generator=torch.Generator().manual_seed(3))
    assert str(confirmed(function(lambda m, x: body(x, m.p), p=()), x).joint) == expected


def test_a_bias_that_differs_along_what_is_normalised_is_certain(function: Any, confirmed: Callable[..., Any]) -> None:
    """Through all that leaves it as it is: other layouts, parts, joints, pools and weights."""
    x = torch.randn(5, 4, 4, 4, generator=torch.Generator().manual_seed(3))
    kept: dict[str, Callable[[Tensor], Tensor]] = {
        "as it is": lambda y: y,
        "joined": swapped,
        "a part": lambda y: y[:, :3],
        "turned": lambda y: y.transpose(1, 3).flip(1).transpose(1, 3),
        "in another shape": lambda y: y.flatten(2).unflatten(2, (2, 8)),
        "pooled": lambda y: F.avg_pool2d(y, 2),
        "averaged": lambda y: y.mean((2, 3), keepdim=True),
        "scaled": lambda y: y * 0.5,
        "less its mean": lambda y: y - y.mean(1, keepdim=True),
    }
    for name, keep in kept.items():
        model = function(lambda m, x, keep=keep: F.normalize(keep(x + m.p).std(1), dim=0), p=(4, 1, 1))
        assert str(confirmed(model, x).joint) == NOT, name


def test_behind_trained_weights_no_exponential_undoes_a_logarithm(function: Any, confirmed: Callable[..., Any]) -> None:
    x = torch.randn(5, 4, 4, 4, generator=torch.Generator().manual_seed(3))
    for expected, weigh in (
        (NOT, lambda y, m: y @ m.w),
        (NOT, lambda y, m: y * m.w),
        (UNKNOWN, lambda y, m: y + m.w),
        (UNKNOWN, lambda y, m: y @ DIFFERENCES.to(y)),
    ):
        model = function(lambda m, x, weigh=weigh: weigh(logged(x, m.p), m).tanh(), p=(), w=(4, 4))
        assert str(confirmed(model, x).alone["p"]) == expected


def test_a_frozen_filter_may_have_been_made_to_remove_it(function: Any, confirmed: Callable[..., Any]) -> None:
    x = torch.randn(5, 4, 4, 4, generator=torch.Generator().manual_seed(3))
    for trained, expected in ((False, UNKNOWN), (True, NOT)):
        weight = torch.nn.Parameter(DIFFERENCES.clone(), requires_grad=False)
        model = function(lambda m, x: (x + m.p) @ m.w, p=(), w=(4, 4) if trained else weight)
        assert str(confirmed(model, x).joint) == expected
