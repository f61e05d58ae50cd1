"""Models that were written to make `symmetries` claim too much: every claim is measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from isogon.symmetry import symmetries

w = (6, 6)
b, p, s = (6,), (6,), ()


def norm(x: Tensor) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],))


def batch_norm(x: Tensor) -> Tensor:
    return F.batch_norm(x, None, None, training=True)


def skip(m: Any, x: Tensor) -> Any:
    h = x @ m.w + m.b
    first, second = torch.cat([h, h @ m.v], 1).chunk(2, 1)
    return batch_norm(first), second


def sliced(m: Any, x: Tensor) -> Any:
    first, second = F.linear(x, m.fused, m.fused_bias).chunk(2, 1)
    both = torch.stack([torch.cat([x, x], 1), torch.cat([first, second], 1)])
    return F.normalize(both[1], dim=1)


def expanded_weights(m: Any, x: Tensor) -> Any:
    weights = torch.softmax(x @ x.T, 1).expand(3, 8, 8)
    v = (x @ m.w + m.b).expand(3, 8, 6)
    return F.instance_norm(v.transpose(1, 2) @ weights)


def masked_queries(m: Any, x: Tensor) -> Any:
    keep = torch.ones(8, 8, dtype=torch.bool)
    keep[3] = False
    q = x[None]
    return F.instance_norm(F.scaled_dot_product_attention(q, q, q @ m.w + m.b, attn_mask=keep).transpose(1, 2))


def aliased(m: Any, x: Tensor) -> Any:
    h = x.clone()
    torch.atleast_3d(h).mul_(m.s)
    return h


IMAGE = torch.linspace(-1, 1, 2 * 2 * 5 * 5).view(2, 2, 5, 5)
MASK = torch.arange(8)[:, None] % 3 == torch.arange(6) % 3
CASES: dict[str, tuple[Callable[..., Any], dict[str, tuple[int, ...]]]] = {
    "parts of a skip": (skip, {"w": w, "b": b, "v": w}),
    "a degree of 0 beside": (
        lambda m, x: norm(F.relu(torch.cat([x, (norm(x) + m.b) * m.p], 1)[:, 6:])), {"b": b, "p": p},
    ),
    "slices put together again": (sliced, {"fused": (12, 6), "fused_bias": (12,)}),
    "a mask of equal chances": (
        lambda m, x: batch_norm((x @ m.w + m.b) * torch.bernoulli(torch.full_like(x, 0.5))), {"w": w, "b": b},
    ),
    "a choice wider than both": (lambda m, x: norm(norm(torch.where(MASK, m.s, 2 * m.s)) + x * m.p), {"s": s, "p": p}),
    "zeros beside a diagonal": (lambda m, x: norm(torch.diag_embed(x * m.p + m.s)), {"p": p, "s": s}),
    "zeros around patches": (
        lambda m, x: batch_norm(F.unfold(F.conv2d(IMAGE, m.k) + m.s, 3, padding=1)), {"k": (2, 2, 1, 1), "s": s},
    ),
    "a mask of infinities": (
        lambda m, x: norm(norm(torch.relu((x[:, :1].abs() * m.s.abs()).masked_fill(MASK, -torch.inf))) + x * m.p),
        {"s": s, "p": p},
    ),
    "a running product": (
        lambda m, x: norm(norm(x[:, :1] * m.s * torch.full((6,), 0.5).cumprod(0)) + x * m.p), {"s": s, "p": p},
    ),
    "attention weights of all": (expanded_weights, {"w": w, "b": b}),
    "queries that see nothing": (masked_queries, {"w": w, "b": b}),
    "weights of a loss": (
        lambda m, x: F.binary_cross_entropy_with_logits(norm(x), (x > 0).float(), pos_weight=m.p.detach().abs()),
        {"p": p},
    ),
    "ends of a line": (lambda m, x: x * torch.linspace(m.s.item(), m.r.item(), 6), {"s": s, "r": s}),
    "a slope read out": (lambda m, x: F.leaky_relu(x @ m.w, m.s.item()), {"w": w, "s": s}),
    "a factor read out": (lambda m, x: torch.addmm(x, x, m.w, alpha=m.s.item()), {"w": w, "s": s}),
    "a power of π": (lambda m, x: (x * m.s).abs().pow(3.14159265) * m.r, {"s": s, "r": s}),
    "a tiny power": (lambda m, x: (x * m.s).abs().pow(5e-5), {"s": s}),
    "zeros under a root": (
        lambda m, x: batch_norm(torch.sqrt(torch.cat([torch.zeros(8, 2), (x * m.p).abs() + m.b.abs()], 1) + 1e-6)),
        {"p": p, "b": b},
    ),
    "written through another name": (aliased, {"s": s}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_no_claim_is_contradicted(name, function):
    compute, tensors = CASES[name]
    model = function(compute, **tensors)
    generator = torch.Generator().manual_seed(0)
    answer = symmetries(model, torch.randn(8, 6, generator=generator), verify=True)
    assert answer.holds, answer.verification
    assert all(power for vector in answer.basis for power in vector.values())


def test_a_right_value_with_a_detached_gradient_is_no_contradiction(function):
    model = function(lambda m, x: (x @ m.w) / (x @ m.w).norm(dim=1, keepdim=True).detach(), w=w)
    answer = symmetries(model, torch.randn(8, 6), verify=True)
    assert answer.alone == ("w",)
    assert answer.holds


def test_small_powers_of_a_question_are_not_rounded(function):
    answer = symmetries(function(lambda m, x: x @ m.w, w=w), torch.randn(8, 6))
    assert not answer.allows({"w": 5e-5})
    assert answer.allows({"w": 0.0})
