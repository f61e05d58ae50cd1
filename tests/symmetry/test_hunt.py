"""Random small networks out of the supported operations: what the rules say is compared with measuring."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, assume, example, given, note, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from isogon.symmetry import check, symmetries

BATCH, CHANNELS, SIDE = 5, 4, 4


class Scale(nn.Module):
    """One parameter, multiplied or added, of a given extent."""

    def __init__(self, shape: tuple[int, ...], how: str, trainable: bool, zero: bool = False) -> None:
        super().__init__()
        start = torch.zeros(shape) if zero else torch.randn(shape)
        self.p = nn.Parameter(start, requires_grad=trainable)
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "mul":
            return x * self.p
        if self.how == "gate":
            return x * torch.sigmoid(self.p)
        return x + self.p if self.how == "add" else x - self.p


class StandardisedConv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(CHANNELS, CHANNELS, 3, 3))

    def forward(self, x: Tensor) -> Tensor:
        w = self.weight
        w = w - w.mean(dim=(1, 2, 3), keepdim=True)
        return F.conv2d(x, w / (w.std(dim=(1, 2, 3), keepdim=True) + 1e-6), padding=1)


class SqueezeExcite(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Conv2d(CHANNELS, CHANNELS, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.fc(x.amax((2, 3), keepdim=True)))


class Attention(nn.Module):
    def __init__(self, normalised: bool) -> None:
        super().__init__()
        self.q, self.k, self.v = (
            nn.Linear(CHANNELS, CHANNELS),
            nn.Linear(CHANNELS, CHANNELS),
            nn.Linear(CHANNELS, CHANNELS),
        )
        self.normalised = normalised

    def forward(self, x: Tensor) -> Tensor:
        t = x.flatten(2).transpose(1, 2)
        q, k, v = self.q(t), self.k(t), self.v(t)
        if self.normalised:
            q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)


class HandAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(CHANNELS, 3 * CHANNELS, bias=False)
        self.kb = nn.Parameter(torch.randn(CHANNELS))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x.flatten(2).transpose(1, 2)).chunk(3, dim=-1)
        scores = q @ (k + self.kb).transpose(-2, -1) * 0.5
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        return (scores.masked_fill(~mask, float("-inf")).softmax(-1) @ v).transpose(1, 2).reshape(x.shape)


class Normalise(nn.Module):
    """Normalisations written by hand."""

    def __init__(self, how: str, dims: tuple[int, ...]) -> None:
        super().__init__()
        self.how, self.dims = how, dims

    def forward(self, x: Tensor) -> Tensor:
        d = self.dims
        if self.how == "centre":
            return x - x.mean(d, keepdim=True)
        if self.how == "std":
            return (x - x.mean(d, keepdim=True)) / (x.std(d, keepdim=True) + 1e-5)
        if self.how == "rms":
            return x * torch.rsqrt(x.pow(2).mean(d, keepdim=True) + 1e-6)
        if self.how == "l2":
            return x / torch.linalg.vector_norm(x, dim=d, keepdim=True)
        if self.how == "median":
            return x - x.median(d[0], keepdim=True)[0]
        return x / x.abs().mean(d, keepdim=True).clamp_min(1e-6)


class Apply(nn.Module):
    def __init__(self, function: Callable[..., Any], name: str) -> None:
        super().__init__()
        self.function, self.name = function, name

    def extra_repr(self) -> str:
        return self.name

    def forward(self, *x: Any) -> Any:
        return self.function(*x)


def frozen(module: nn.Module) -> nn.Module:
    return module.requires_grad_(False)


def shuffled(x: Tensor) -> Tensor:
    n, c, h, w = x.shape
    return x.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


def alternating(x: Tensor) -> Tensor:
    return x * (1 - 2 * (torch.arange(x.shape[1])[:, None, None] % 2))


def swapped_halves(x: Tensor) -> Tensor:
    a, b = x.chunk(2, dim=1)
    return torch.cat([b, a], dim=1)


UNARY: dict[str, Callable[[], nn.Module]] = {
    "conv": lambda: nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False),
    "conv bias": lambda: nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1),
    "conv 1x1 bias": lambda: nn.Conv2d(CHANNELS, CHANNELS, 1),
    "conv grouped": lambda: nn.Conv2d(CHANNELS, CHANNELS, 1, groups=2, bias=False),
    "conv depthwise": lambda: nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, groups=CHANNELS),
    "conv transposed": lambda: nn.ConvTranspose2d(CHANNELS, CHANNELS, 3, padding=1, groups=2),
    "conv frozen": lambda: frozen(nn.Conv2d(CHANNELS, CHANNELS, 1)),
    "conv circular": lambda: nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, padding_mode="circular"),
    "weight norm": lambda: nn.utils.parametrizations.weight_norm(nn.Conv2d(CHANNELS, CHANNELS, 1)),
    "weight standardised": StandardisedConv,
    "linear": lambda: nn.Linear(SIDE, SIDE),
    "linear no bias": lambda: nn.Linear(SIDE, SIDE, bias=False),
    "batch norm": lambda: nn.BatchNorm2d(CHANNELS),
    "batch norm plain": lambda: nn.BatchNorm2d(CHANNELS, affine=False),
    "batch norm frozen": lambda: frozen(nn.BatchNorm2d(CHANNELS)),
    "batch norm eval": lambda: nn.BatchNorm2d(CHANNELS).eval(),
    "group norm": lambda: nn.GroupNorm(2, CHANNELS),
    "group norm plain": lambda: nn.GroupNorm(1, CHANNELS, affine=False),
    "instance norm": lambda: nn.InstanceNorm2d(CHANNELS, affine=True),
    "instance norm plain": lambda: nn.InstanceNorm2d(CHANNELS),
    "layer norm": lambda: nn.LayerNorm(SIDE),
    "layer norm plain": lambda: nn.LayerNorm((CHANNELS, SIDE, SIDE), elementwise_affine=False),
    "rms norm": lambda: nn.RMSNorm(SIDE),
    "relu": nn.ReLU,
    "relu in place": lambda: nn.ReLU(inplace=True),
    "leaky relu": lambda: nn.LeakyReLU(0.1),
    "prelu": lambda: nn.Sequential(
        Apply(alternating, "signs"), nn.PReLU(CHANNELS), frozen(nn.Conv2d(CHANNELS, CHANNELS, 1, bias=False))
    ),
    "sigmoid": nn.Sigmoid,
    "gelu": nn.GELU,
    "hardswish": nn.Hardswish,
    "softplus": nn.Softplus,
    "dropout": lambda: nn.Dropout(0.3),
    "dropout2d": lambda: nn.Dropout2d(0.3),
    "abs": lambda: Apply(torch.abs, "abs"),
    "square": lambda: Apply(torch.square, "square"),
    "root": lambda: Apply(lambda x: x.abs().sqrt(), "root"),
    "clamp": lambda: Apply(lambda x: x.clamp(min=0), "clamp at 0"),
    "clamp both": lambda: Apply(lambda x: x.clamp(-0.5, 3.0), "clamp both"),
    "add constant": lambda: Apply(lambda x: x + 0.3, "add constant"),
    "multiply constant": lambda: Apply(lambda x: x * -0.7, "multiply constant"),
    "log": lambda: Apply(lambda x: (x.abs() + 1).log() - 0.5, "log"),
    "pure log": lambda: Apply(lambda x: x.abs().log(), "pure log"),
    "softmax": lambda: Apply(lambda x: x.softmax(1), "softmax"),
    "softmax last": lambda: Apply(lambda x: x.softmax(-1), "softmax last"),
    "average pool": lambda: nn.AvgPool2d(3, 1, 1),
    "max pool": lambda: nn.MaxPool2d(3, 1, 1),
    "resize": lambda: Apply(lambda x: F.interpolate(F.avg_pool2d(x, 2), scale_factor=2, mode="bilinear"), "resize"),
    "flip": lambda: Apply(lambda x: x.flip(1), "flip"),
    "roll": lambda: Apply(lambda x: x.roll(1, 1), "roll"),
    "shuffle": lambda: Apply(shuffled, "shuffle"),
    "swap halves": lambda: Apply(swapped_halves, "swap halves"),
    "channel last": lambda: Apply(lambda x: x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2), "channel last"),
    "cumsum": lambda: Apply(lambda x: x.cumsum(2), "cumsum"),
    "sort": lambda: Apply(lambda x: x.sort(-1)[0], "sort"),
    "zero a channel": lambda: Apply(lambda x: torch.cat([x[:, :1] * 0.0, x[:, 1:]], 1), "zero a channel"),
    "write a channel": lambda: Apply(_write_channel, "write a channel"),
    "pad and crop": lambda: Apply(lambda x: F.pad(x, (1, 1, 1, 1))[..., :-2, 2:], "pad and crop"),
    "sign gate": lambda: Apply(lambda x: torch.where(x > 0, x, 0.2 * x), "sign gate"),
    "threshold gate": lambda: Apply(lambda x: x * (x.abs() > 0.1), "threshold gate"),
    "scale scalar": lambda: Scale((), "mul", True),
    "scale channel": lambda: Scale((CHANNELS, 1, 1), "mul", True),
    "scale full": lambda: Scale((CHANNELS, SIDE, SIDE), "mul", True),
    "gate scalar": lambda: Scale((), "gate", True),
    "gate channel": lambda: Scale((CHANNELS, 1, 1), "gate", True),
    "shift scalar": lambda: Scale((), "add", True),
    "shift channel": lambda: Scale((CHANNELS, 1, 1), "add", True),
    "shift row": lambda: Scale((SIDE, 1), "sub", True),
    "shift frozen": lambda: Scale((CHANNELS, 1, 1), "add", False),
    "shift frozen zero": lambda: Scale((CHANNELS, 1, 1), "add", False, zero=True),
    "squeeze excite": SqueezeExcite,
    "attention": lambda: Attention(False),
    "attention normalised": lambda: Attention(True),
    "attention by hand": HandAttention,
    "centre batch": lambda: Normalise("centre", (0, 2, 3)),
    "centre rows": lambda: Normalise("centre", (3,)),
    "std by hand": lambda: Normalise("std", (0, 2, 3)),
    "std instance": lambda: Normalise("std", (2, 3)),
    "rms by hand": lambda: Normalise("rms", (1,)),
    "l2": lambda: Normalise("l2", (1, 2, 3)),
    "minus median": lambda: Normalise("median", (1,)),
    "mean abs": lambda: Normalise("mean abs", (1, 2, 3)),
}


def _write_channel(x: Tensor) -> Tensor:
    y = x.clone()
    y[:, 0] = y[:, 1] * 2
    return y


BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": torch.add,
    "sub": lambda a, b: a - 0.5 * b,
    "mul": torch.mul,
    "div": lambda a, b: a / (b.square().mean((1, 2, 3), keepdim=True) + 1e-6),
    "maximum": lambda a, b: torch.maximum(a, 0.5 * b),
    "cat": lambda a, b: torch.cat([a[:, :2], b[:, 2:]], 1),
    "where": lambda a, b: torch.where(torch.eye(SIDE) > 0, a, b),
    "einsum": lambda a, b: torch.einsum("nchw,ndhw->ncd", a, b).unsqueeze(-1) * a,
    "matmul": torch.matmul,
    "stack": lambda a, b: torch.stack([a, b], 2).flatten(1, 2)[:, 1:5],
}

HEADS: dict[str, Callable[[], nn.Module]] = {
    "nothing": nn.Identity,
    # Not the mean over all positions: that of an instance-normalised tensor is zero whatever its scale.
    "pool": lambda: nn.Sequential(nn.AdaptiveAvgPool2d((1, SIDE)), nn.Flatten()),
    "batch norm frozen linear": lambda: nn.Sequential(
        nn.Flatten(), nn.BatchNorm1d(CHANNELS * SIDE**2, affine=False), frozen(nn.Linear(CHANNELS * SIDE**2, 3))
    ),
    "batch norm": lambda: nn.BatchNorm2d(CHANNELS, affine=False),
    "instance norm": lambda: nn.InstanceNorm2d(CHANNELS),
    "layer norm": lambda: nn.LayerNorm((CHANNELS, SIDE, SIDE), elementwise_affine=False),
    "group norm": lambda: nn.GroupNorm(2, CHANNELS, affine=False),
    "log softmax": lambda: nn.LogSoftmax(1),
    "flatten linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(CHANNELS * SIDE * SIDE, 3)),
}


class RandomNet(nn.Module):
    """Steps that each read one or two earlier tensors; the head reads the last."""

    def __init__(self, steps: list[tuple[str, int, int]], head: str) -> None:
        super().__init__()
        self.plan = steps
        self.steps = nn.ModuleList(UNARY[name]() if name in UNARY else nn.Identity() for name, _, _ in steps)
        self.head = HEADS[head]()

    def body(self, x: Tensor) -> Tensor:
        return self.values(x)[-1]

    def values(self, x: Tensor) -> list[Tensor]:
        """The input and what each step makes."""
        seen = [x]
        for (name, first, second), module in zip(self.plan, self.steps, strict=True):
            a = seen[-1 - first % min(len(seen), 2)]
            b = seen[-1 - second % len(seen)]
            b = b.roll(1, 0)  # a − a, a − c·a and a / a are beyond any rule
            # An in-place step must not destroy what a later step reads.
            seen.append(module(a.clone() if "in place" in name else a) if name in UNARY else BINARY[name](a, b))
        return seen

    def forward(self, x: Tensor) -> Any:
        return self.head(self.body(x))


steps = st.tuples(st.sampled_from([*UNARY, *BINARY]), st.sampled_from([0, 0, 0, 1]), st.integers(0, 7))


def hunt(plan: list[tuple[str, int, int]], head: str, contradicted: Callable[..., dict[str, str]]) -> None:
    # Attention makes tokens alike; where they are equal up to rounding, the queries of the next do not matter at all.
    assume(sum("attention" in name for name, _, _ in plan) <= 1)
    torch.manual_seed(len(plan))
    model, x = RandomNet(plan, head), torch.randn(BATCH, CHANNELS, SIDE, SIDE)
    # What is zero by chance, such as a product of matrices full of zeros or ReLU(−ReLU), no rule can see.
    assume(all(bool(value.any()) for value in model.values(x)))
    scale_map = check(model, x)
    note(str(scale_map))
    found = contradicted(scale_map, model, x)
    assert found == {}, f"{plan} then {head}: {found}"


@settings(max_examples=50, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.lists(steps, min_size=1, max_size=7), st.sampled_from(list(HEADS)))
@example([("conv bias", 0, 0), ("where", 0, 1), ("conv", 0, 0)], "batch norm frozen linear")  # a bias of some places
@example([("conv", 0, 0), ("where", 0, 1), ("where", 0, 1)], "nothing")  # a choice of one part of a choice
@example([("zero a channel", 0, 0), ("gate scalar", 0, 0)], "layer norm")  # a factor that all but zeros share
@example([("shift scalar", 0, 0), ("swap halves", 0, 0), ("softmax", 0, 0)], "nothing")  # parts with one shift
@example(  # a norm that divides by a number of γ and β alone
    [("instance norm", 0, 0), ("flip", 0, 0), ("group norm", 0, 0)], "batch norm"
)
@example([("instance norm", 0, 0), ("relu", 0, 0), ("group norm", 0, 0)], "batch norm")
@example(  # a channel of rounding errors, which a norm without any ε would blow up
    [("zero a channel", 0, 0), ("centre rows", 0, 0), ("group norm plain", 0, 0), ("scale scalar", 0, 0)],
    "batch norm frozen linear",
)
def test_no_answer_is_contradicted_by_measuring(
    contradicted: Callable[..., dict[str, str]], plan: list[tuple[str, int, int]], head: str
) -> None:
    hunt(plan, head, contradicted)


@pytest.mark.slow
@settings(max_examples=1500, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(steps, min_size=1, max_size=9), st.sampled_from(list(HEADS)))
def test_no_answer_is_contradicted_by_measuring_at_length(
    contradicted: Callable[..., dict[str, str]], plan: list[tuple[str, int, int]], head: str
) -> None:
    hunt(plan, head, contradicted)


# Operations of which nothing but powers takes a scale out: no shifts that a softmax or a norm ignores, no sigmoids.
RANKED = [
    "conv", "conv grouped", "conv frozen", "conv circular", "linear no bias", "batch norm plain", "group norm plain",
    "layer norm plain", "instance norm plain", "rms norm", "weight standardised", "relu", "leaky relu", "abs", "square",
    "root", "average pool", "max pool", "flip", "roll", "shuffle", "swap halves", "channel last", "cumsum", "sort",
    "sign gate", "scale scalar", "scale channel", "scale full", "l2", "rms by hand", "mean abs", "gelu",
    "add", "sub", "mul", "cat", "matmul", "stack",
]  # fmt: skip
ranked_steps = st.tuples(st.sampled_from(RANKED), st.sampled_from([0, 0, 0, 1]), st.integers(0, 7))


def hunt_ranks(plan: list[tuple[str, int, int]], head: str, measured_rank: Callable[..., int | None]) -> None:
    """As many scalings are found as measuring allows."""
    # After several of them whole channels are one number, and of these a norm shows its ε.
    assume(sum(name == "max pool" for name, _, _ in plan) <= 1)
    torch.manual_seed(len(plan))
    model, x = RandomNet(plan, head), torch.randn(BATCH, CHANNELS, SIDE, SIDE)
    assume(bool(model.body(x).any()))
    answer = symmetries(model, x)
    assume(answer.names != ())
    rank = measured_rank(model, (x,), {}, answer)
    note(str(answer))
    assert rank is None or rank == len(answer.basis)


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.lists(ranked_steps, min_size=1, max_size=6), st.sampled_from(list(HEADS)))
@example([("conv", 0, 0), ("gelu", 0, 0), ("sign gate", 1, 0)], "batch norm")  # a branch that is thrown away
@example([("scale full", 0, 0), ("mul", 0, 1), ("conv", 0, 0), ("rms norm", 0, 0)], "nothing")
def test_as_many_scalings_are_found_as_there_are(
    measured_rank: Callable[..., int | None], plan: Any, head: str
) -> None:
    hunt_ranks(plan, head, measured_rank)


@pytest.mark.slow
@settings(max_examples=1500, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(ranked_steps, min_size=1, max_size=8), st.sampled_from(list(HEADS)))
def test_as_many_scalings_are_found_as_there_are_at_length(
    measured_rank: Callable[..., int | None], plan: Any, head: str
) -> None:
    hunt_ranks(plan, head, measured_rank)


def hunt_symmetries(plan: list[tuple[str, int, int]], head: str) -> None:
    """Every scaling that is found holds when it is measured, and those of one weight agree with `check`."""
    assume(sum("attention" in name for name, _, _ in plan) <= 1)
    torch.manual_seed(len(plan))
    model, x = RandomNet(plan, head), torch.randn(BATCH, CHANNELS, SIDE, SIDE)
    assume(bool(model.body(x).any()))
    answer = symmetries(model, x, verify=True)
    note(str(answer))
    assert answer.holds
    degrees = check(model, x).alone
    for name in answer.alone:
        if name in degrees:
            assert degrees[name].kind != "number" or degrees[name].is_invariant


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.lists(steps, min_size=1, max_size=7), st.sampled_from(list(HEADS)))
@example([("attention by hand", 0, 0), ("batch norm", 0, 0)], "layer norm")  # slices of one weight, a key's bias
@example([("weight norm", 0, 0), ("cat", 0, 1), ("group norm", 0, 0)], "group norm")  # channels of unequal degree
def test_every_scaling_holds_when_it_is_measured(plan: list[tuple[str, int, int]], head: str) -> None:
    hunt_symmetries(plan, head)


@pytest.mark.slow
@settings(max_examples=1500, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(steps, min_size=1, max_size=9), st.sampled_from(list(HEADS)))
def test_every_scaling_holds_when_it_is_measured_at_length(plan: list[tuple[str, int, int]], head: str) -> None:
    hunt_symmetries(plan, head)
