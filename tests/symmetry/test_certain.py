"""Where something besides is in doubt, what is certain stays so; and no more is called certain than is."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

NOT, UNKNOWN = "not homogeneous", "unknown"
Model = Callable[[Any, Tensor], Tensor]
POSITIONS = torch.arange(6)
LEAST = torch.finfo(torch.float32).min
CAUSAL = torch.full((6, 6), LEAST).triu(1)
LATER, EIGHT = POSITIONS[:, None] < POSITIONS, torch.arange(1.0, 9.0)
OF_ITSELF = torch.full((6, 6), LEAST).fill_diagonal_(0)


def norm(x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], eps=1e-12)


def batch_norm(x: Tensor) -> Tensor:
    return F.batch_norm(x, None, None, training=True, eps=1e-12)


def each(m: Any, x: Tensor) -> Tensor:
    """Not homogeneous in every element by itself."""
    return torch.sigmoid(m.p * x)


def rows(m: Any, x: Tensor) -> Tensor:
    """A factor of each row that is no power of p."""
    return torch.sigmoid(m.p * x.sum(1, keepdim=True)) * x


def gate(m: Any, x: Tensor) -> Tensor:
    """A factor that is no power of p."""
    return torch.sigmoid(m.p) * x


def less_mean(x: Tensor) -> Tensor:
    return x - x.mean(0, keepdim=True)


def less_average(x: Tensor) -> Tensor:
    return x - F.avg_pool1d(x.T, 3, 1).T[:1]


def two_biases(m: Any, x: Tensor) -> Tensor:
    return (each(m, x) + m.b) + (each(m, x).sin() + m.b)


def relative_to_queries(m: Any, x: Tensor) -> Tensor:
    """Scores of queries that have a bias, with a term for each query and distance, from a table."""
    queries, distances = m.p * x + m.c, m.w[(POSITIONS[:, None] - POSITIONS).clamp(-3, 4) + 3]
    return (queries @ x.T + torch.einsum("td,tsd->ts", queries, distances)).softmax(1)


# Of x with the shape (6, 8), a number p and vectors b, c of 4 and 8: the answers for p and for b.
CASES: dict[str, tuple[Model, str, str]] = {
    "a bias in some channels, two norms": (
        lambda m, x: norm(norm(each(m, x) + F.pad(m.b, (0, 4))) * m.c),
        NOT,
        UNKNOWN,
    ),
    "a factor and a bias, two norms": (lambda m, x: norm(norm(rows(m, x) + m.c) * m.c), NOT, "0"),
    "a factor without a bias, two norms": (lambda m, x: norm(norm(rows(m, x)) * m.c), UNKNOWN, "0"),
    "beside rows, norm": (lambda m, x: norm(torch.cat([x[:, :4], two_biases(m, x[:, :4])], 0)).mean(0), NOT, NOT),
    "a share with a bias": (lambda m, x: F.normalize(F.linear(rows(m, x), m.w, m.c), dim=1), NOT, "0"),
    "a share without a bias": (lambda m, x: F.normalize(F.linear(rows(m, x), m.w), dim=1), UNKNOWN, "0"),
    "a factor and perhaps no bias, norm": (lambda m, x: norm(less_average(gate(m, x) + m.c)), UNKNOWN, "0"),
    "a factor and perhaps no bias, ReLU": (lambda m, x: norm(F.relu(less_average(gate(m, x) + m.c))), UNKNOWN, "0"),
    "perhaps no bias, ReLU": (lambda m, x: F.relu(less_mean(each(m, x[:, :4]) + m.b)), NOT, "0"),
    "less its mean, and itself": (
        lambda m, x: norm((lambda y: F.linear(y, m.w[:4, :4]) + less_average(y))(m.p * x[:, :4] + m.b)),
        NOT,
        NOT,
    ),
    "less its mean": (lambda m, x: norm(less_mean(m.p * x[:, :4] + m.b)), "0", "0"),
    "relative to queries": (relative_to_queries, NOT, "0"),
    "in heads with norms": (
        lambda m, x: (norm((m.p * x + m.c).unflatten(1, (2, 4)).transpose(0, 1)) @ m.w[:4, :3]).softmax(2),
        NOT,
        "0",
    ),
    "rows and channels in one, and apart again": (
        lambda m, x: batch_norm((m.p * x[:, :4] + m.b).view(2, 3, 4).mT.reshape(8, 3).view(2, 4, 3)),
        UNKNOWN,
        UNKNOWN,
    ),
    "above the least number": (
        lambda m, x: torch.max(m.p * (x @ m.w) + x[:, :1] * m.c[0], torch.tensor(LEAST)).softmax(1),
        NOT,
        "0",
    ),
    "attention to a single token": (
        lambda m, x: norm(x[:, None, :4] + (m.p * x[:, :1, None]).softmax(2) @ (x[:, None, :4] + m.b)),
        "0",
        NOT,
    ),
    "attention behind a mask that is computed": (
        lambda m, x: (
            (x @ (m.p * x + m.c).T) + torch.where(POSITIONS[:, None] >= POSITIONS, 0.0, LEAST) + 0 * m.b.sum()
        ).softmax(1),
        NOT,
        "0",
    ),
    "attention to keys with a bias behind a mask": (
        lambda m, x: (x[:, :4] @ (x[:, :4] + m.p * m.b).T).masked_fill(LATER, LEAST).softmax(1),
        "0",
        "0",
    ),
    "attention behind a mask that is written in place": (
        lambda m, x: (lambda s: s.masked_fill_(LATER, LEAST).float().softmax(1).type_as(s))(x @ (m.p * x + m.c).T),
        NOT,
        "0",
    ),
    "a mask that is written in place, and seen": (
        lambda m, x: (lambda s: s.masked_fill_(LATER, LEAST).softmax(1) + 1e-30 * s.clamp(min=-9))(
            x @ (m.p * x + m.c).T
        ),
        UNKNOWN,
        "0",
    ),
    "differences of values with a bias": (
        lambda m, x: norm(x[:, :4] + (torch.eye(6) - torch.eye(6).roll(1, 0)) @ (x[:, :4] + m.b)),
        "0",
        UNKNOWN,
    ),
    "attention in one piece, behind a mask": (
        lambda m, x: F.scaled_dot_product_attention(
            x[None], m.p * x[None] + m.c, x[None], torch.where(POSITIONS[:, None] >= POSITIONS, 0.0, LEAST)
        ),
        NOT,
        "0",
    ),
    "pooled, less itself": (
        lambda m, x: (lambda y: F.avg_pool1d(y, 3, 1, 1, count_include_pad=False) - y)((m.p * x + m.c).T),
        "1",
        "0",
    ),
    "fixed numbers that cancel": (lambda m, x: norm((m.p * x + m.c[0]) / EIGHT * EIGHT), UNKNOWN, "0"),
    "fixed numbers that are taken away": (lambda m, x: norm((m.p * x + EIGHT) - EIGHT), UNKNOWN, "0"),
    "a mask that is divided away": (
        lambda m, x: ((x @ x.T + 1e4 * m.b[:3].repeat(2)[:, None]).masked_fill(LATER, -1e4) / 1e4).softmax(1),
        "0",
        UNKNOWN,
    ),
    "values that are masked, not scores": (
        lambda m, x: norm(
            F.scaled_dot_product_attention(
                x[None], x[None], (3e3 * (x + m.b.sum())).masked_fill(torch.arange(8) < 3, -1e4)[None]
            )
        ),
        "0",
        UNKNOWN,
    ),
    "a mask that leaves one key": (
        lambda m, x: ((x @ (m.p * x + m.c).T) + torch.where(POSITIONS == 2, 0.0, LEAST)[None]).softmax(1),
        UNKNOWN,
        "0",
    ),
    "a choice of the mask or the scores": (
        lambda m, x: torch.where(LATER, LEAST, x @ x.T + m.b[:3].repeat(2)[:, None]).softmax(1),
        "0",
        "0",
    ),
    "windows whose means are one": (
        lambda m, x: F.avg_pool1d(x[:, :2] + m.b[:2], 3, 1, 1, count_include_pad=False).softmax(1),
        "0",
        UNKNOWN,
    ),
    "a fixed number for each row, norm": (lambda m, x: norm(m.p * x + POSITIONS[:, None].sin()), "0", "0"),
    "beside nothing": (lambda m, x: (x @ torch.cat([x[:0], m.p * x + m.c]).T).softmax(1), NOT, "0"),
    "less its own average": (lambda m, x: norm(less_average(m.p * x[:, :4] + m.b)), UNKNOWN, UNKNOWN),
}


@pytest.mark.parametrize("name", CASES)
def test_a_doubt_leaves_what_is_certain(name: str, function: Any, confirmed: Callable[..., Any]) -> None:
    body, of_p, of_b = CASES[name]
    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(3))
    found = confirmed(function(body, p=(), b=(4,), c=(8,), w=(8, 8)), x).alone
    assert (str(found["p"]), str(found["b"])) == (of_p, of_b)


def relative(offset: Tensor) -> Model:
    """Attention with a bias from a table, read at an index for each pair of tokens."""
    return lambda m, x: (x @ x.T + m.t[:, 0][offset]).softmax(1) @ x


def buckets() -> Tensor:
    """Distances, the farther ones in ever wider buckets, as T5 has them."""
    far = (torch.arange(6)[:, None] - torch.arange(6)).abs()
    return torch.where(
        far < 2, far, 2 + (torch.log(far.float().clamp(min=1) / 2) / math.log(2) * 2).long().clamp(min=0)
    )


def masked(m: Any, x: Tensor, mask: Tensor) -> Tensor:
    """Attention with one bias for all distances of two and more to the right, and a mask."""
    bias = m.t[:, 0][(POSITIONS[:, None] - POSITIONS).clamp(-2, 5) + 5]
    return F.scaled_dot_product_attention(x[None], x[None], x[None], attn_mask=bias + mask, scale=1.0)


# Of x with the shape (6, 8) and a table of 11 rows: the answer for the table.
TABLES: dict[str, tuple[Model, str]] = {
    "relative positions": (relative(POSITIONS[:, None] - POSITIONS + 5), NOT),
    "relative positions, computed": (
        lambda m, x: relative((torch.arange(6)[:, None] - torch.arange(6)).clamp(-2, 2) + 5)(m, x),
        NOT,
    ),
    "one for each row": (relative(POSITIONS[:, None].expand(6, 6)), "0"),
    "one for all": (relative(torch.full((6, 6), 3)), "0"),
    "as the input says": (lambda m, x: relative((x[:, :6] > 9).long())(m, x), UNKNOWN),
    "the last of them": (
        lambda m, x: (x.sum(1) + m.t[:, 0][POSITIONS.clamp(0, 3)])[3:].softmax(0),
        UNKNOWN,
    ),
    "relative positions, by logarithms": (lambda m, x: relative(buckets())(m, x), NOT),
    "relative positions beside zeros": (lambda m, x: masked(m, x, torch.zeros(6, 6)), NOT),
    "relative positions, causal": (lambda m, x: masked(m, x, CAUSAL), NOT),
    "relative positions, of itself alone": (
        lambda m, x: masked(m, x, OF_ITSELF),
        UNKNOWN,
    ),
    "positions, norm": (lambda m, x: norm(x + F.embedding(torch.arange(6), m.t)), NOT),
    "positions, batch norm": (lambda m, x: batch_norm(x + F.embedding(torch.arange(6), m.t)), NOT),
    "one position, batch norm": (lambda m, x: batch_norm(x + F.embedding(0 * POSITIONS, m.t)), "0"),
    "as the input says, batch norm": (lambda m, x: batch_norm(x + F.embedding((x[:, 0] > 9).long(), m.t)), UNKNOWN),
    "as the input says, norm": (lambda m, x: norm(x + F.embedding((x[:, 0] > 9).long(), m.t)), NOT),
    "as the input says, linear": (
        lambda m, x: batch_norm(F.linear(x + F.embedding((x[:, 0] > 9).long(), m.t), m.w)),
        UNKNOWN,
    ),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_read_at_constant_places(name: str, function: Any, confirmed: Callable[..., Any]) -> None:
    body, expected = TABLES[name]
    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(3))
    assert str(confirmed(function(body, t=(11, 8), w=(8, 8)), x).alone["t"]) == expected
