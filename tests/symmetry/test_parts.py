"""What is put beside other tensors, written in pieces or picked, and found again: judged as what it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

NOT, UNKNOWN = "not homogeneous", "unknown"
Model = Callable[[Any, Tensor], Tensor]
PICKS = torch.tensor([2, 0, 1])


def norm(x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], eps=1e-12)


def tokens(m: Any, x: Tensor) -> Tensor:
    """A class token before tokens that have a bias."""
    return torch.cat([m.token.expand(len(x), -1, -1), F.linear(x, m.w, m.b)], 1)


def residual(m: Any, x: Tensor) -> Tensor:
    y = tokens(m, x)
    return y + torch.cat([F.linear(norm(y)[:, :1], m.v), y[:, 1:] * m.g], 1)


def heads(m: Any, x: Tensor) -> Tensor:
    y = F.linear(norm(tokens(m, x)), m.v).unflatten(2, (2, 4)).transpose(1, 2)
    return norm(y[:, :, 0])


# Of x with the shape (3, 5, 8): the answers for the bias of the tokens and for the class token.
TOKENS: dict[str, tuple[Model, str, str]] = {
    "nothing": (tokens, NOT, NOT),
    "norm": (lambda m, x: norm(tokens(m, x)), NOT, "0"),
    "norm, class token": (lambda m, x: norm(tokens(m, x))[:, 0], "0", "0"),
    "norm, the others": (lambda m, x: norm(tokens(m, x))[:, 1:], NOT, "0"),
    "some of the others": (lambda m, x: tokens(m, x)[:, 2:4], NOT, "0"),
    "norm, split": (lambda m, x: norm(tokens(m, x)).split([1, 5], 1)[0], "0", "0"),
    "linear, class token": (lambda m, x: F.linear(tokens(m, x), m.v)[:, :1], "0", "1"),
    "turned, class token": (lambda m, x: tokens(m, x).transpose(1, 2)[..., 0], "0", "1"),
    "one token, then its half": (lambda m, x: norm(tokens(m, x).flatten(1)[:, :8])[:, 4:], "0", "0"),
    "residual, class token": (lambda m, x: residual(m, x)[:, 0], "0", NOT),
    "residual, the others": (lambda m, x: norm(residual(m, x)[:, 1:]), NOT, "0"),
    "heads, class token": (heads, "0", "0"),
    "class token beside another": (lambda m, x: norm(torch.cat([x, tokens(m, x)], 1)[:, 5]), "0", "0"),
    "mixed": (lambda m, x: norm(tokens(m, x).mean(1, keepdim=True)[:, 0]), NOT, NOT),
    "over the tokens": (lambda m, x: F.layer_norm(tokens(m, x), (6, 8))[:, 0], NOT, NOT),
    "with a position": (lambda m, x: norm((tokens(m, x) + m.at)[:, 0]), "0", NOT),
}


@pytest.mark.parametrize("name", TOKENS)
def test_a_part_is_judged_by_itself(name: str, function: Any, confirmed: Callable[..., Any]) -> None:
    body, of_bias, of_token = TOKENS[name]
    x = torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(3))
    found = confirmed(function(body, token=(1, 1, 8), w=(8, 8), b=(8,), v=(8, 8), g=(8,), at=(1, 6, 8)), x).alone
    assert (str(found["b"]), str(found["token"])) == (of_bias, of_token)


def gate(m: Any, x: Tensor) -> Tensor:
    """A factor that a norm takes out, of the whole tensor."""
    return torch.sigmoid(m.p) * x


def each(m: Any, x: Tensor) -> Tensor:
    """Not homogeneous in every element by itself."""
    return torch.sigmoid(m.p * x)


def in_pieces(piece: Model, rows: int = 4, first: Tensor | None = None) -> Model:
    def body(m: Any, x: Tensor) -> Tensor:
        out = torch.zeros_like(x) if first is None else x + first
        for i in range(rows):
            out[i] = piece(m, x)[i]
        return out

    return body


def normed(body: Model) -> Model:
    return lambda m, x: norm(body(m, x))


def beside(m: Any, x: Tensor) -> Tensor:
    """What a write into the first rows leaves alone."""
    out = x.clone()
    first, others = out[:2], out[2:]
    first.copy_(each(m, x)[:2])
    return others * 2


def overwritten(m: Any, x: Tensor) -> Tensor:
    out = each(m, x)
    out[:] = x
    return out


def over_a_bias(m: Any, x: Tensor) -> Tensor:
    out = x + m.p
    for i in range(4):
        out[i] = x[i]
    return out


def written_twice(m: Any, x: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    out[:2] = x[:2]
    out.add_(each(m, x))
    out[2:] = x[2:]
    return out


def written_through_another_shape(m: Any, x: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    out[:2] = x[:2]
    out.view(-1)[:8].reshape(-1).copy_(each(m, x).view(-1)[:8])
    out[2:] = x[2:]
    return out


def looped(m: Any, x: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for i in range(4):
        out[i] = each(m, x)[i] + out.sum(0)
    return out


def sorted_in_place(m: Any, x: Tensor) -> Tensor:
    """The values are divided in place, which leaves their indices as they are."""
    values, indices = x.abs().topk(3, dim=1)
    values /= (m.p * values).exp().sum(1, keepdim=True)
    return x.gather(1, indices) * m.p


# Of x with the shape (4, 8) and one number p: the answer.
PIECES: dict[str, tuple[Model, str]] = {
    "in pieces": (in_pieces(each), NOT),
    "in pieces, norm": (normed(in_pieces(each)), NOT),
    "in pieces, a part": (lambda m, x: in_pieces(each)(m, x)[1:3], NOT),
    "in some pieces": (in_pieces(each, 2), NOT),
    "in some pieces, the others": (lambda m, x: in_pieces(each, 2)(m, x)[2:], UNKNOWN),
    "over what does not change": (in_pieces(each, 2, first=torch.ones(4, 8)), NOT),
    "all over a bias": (over_a_bias, "0"),
    "a factor in pieces": (in_pieces(gate), NOT),
    "a factor in pieces, norm": (normed(in_pieces(gate)), UNKNOWN),
    "in a loop": (looped, NOT),
    "beside": (beside, UNKNOWN),
    "overwritten": (overwritten, "0"),
    "written twice": (written_twice, UNKNOWN),
    "written through another shape": (written_through_another_shape, UNKNOWN),
    "values and indices": (sorted_in_place, "1"),
    # picked
    "a factor, rows, norm": (lambda m, x: norm(gate(m, x)[PICKS]), UNKNOWN),
    "a factor, columns, norm": (lambda m, x: norm(gate(m, x)[:, PICKS]), UNKNOWN),
    "a factor, elements, norm": (lambda m, x: norm(gate(m, x).take(PICKS)), UNKNOWN),
    "a factor, gathered, share": (
        lambda m, x: (lambda y: y / y.sum(1, keepdim=True))(gate(m, x.abs()).gather(1, PICKS.expand(4, 3))),
        UNKNOWN,
    ),
    "a factor, gathered": (lambda m, x: gate(m, x).gather(1, PICKS.expand(4, 3)), NOT),
    "a factor, selected, norm": (lambda m, x: norm(gate(m, x).index_select(1, PICKS)), UNKNOWN),
    "a factor, added to rows, norm": (
        lambda m, x: norm(torch.zeros_like(x).index_add(0, PICKS, gate(m, x)[:3]) + 0 * x),
        UNKNOWN,
    ),
    "each, rows, norm": (lambda m, x: norm(each(m, x)[PICKS]), NOT),
    "each, gathered, share": (
        lambda m, x: (lambda y: y / y.sum(1, keepdim=True))(each(m, x).gather(1, PICKS.expand(4, 3))),
        NOT,
    ),
    "each, largest, share": (
        lambda m, x: (lambda y: y / y.sum(1, keepdim=True))(each(m, x).topk(3, dim=1)[0]),
        NOT,
    ),
    # counted
    "how many of each": (lambda m, x: x * torch.histc(x.topk(1)[1].float(), 4, 0, 3).sum() * m.p, "1"),
    "how many of what changes": (lambda m, x: torch.histc(m.p * x, 4, -3, 3), NOT),
}


def fused(m: Any, x: Tensor) -> tuple[Tensor, ...]:
    """Queries and values with a bias, keys without, from one linear layer, in two heads."""
    bias = torch.cat([m.first, torch.zeros(4), m.last])
    return F.linear(x, m.w, bias).unflatten(1, (3, 2, 2)).permute(1, 2, 0, 3).unbind(0)


# Of x with the shape (6, 8), weights (12, 8) and biases of 4: the answers for the weights and for the first bias.
FUSED: dict[str, tuple[Model, str, str]] = {
    "queries": (lambda m, x: F.normalize(fused(m, x)[0], dim=2), NOT, NOT),
    "keys": (lambda m, x: F.normalize(fused(m, x)[1], dim=2), "0", "0"),
    "values": (lambda m, x: F.normalize(fused(m, x)[2], dim=2), NOT, "0"),
    "attention": (lambda m, x: (lambda q, k, v: (q @ k.mT).softmax(2) @ v)(*fused(m, x)), NOT, NOT),
    "folded": (lambda m, x: norm(F.fold((x @ m.w.T).T[None], 4, 2, stride=2)[..., :2]), "0", "0"),
    "folded with a bias": (lambda m, x: norm(F.fold(F.linear(x, m.w, m.bias).T[None], 3, 2)), UNKNOWN, "0"),
}


@pytest.mark.parametrize("name", FUSED)
def test_parts_of_one_linear_layer(name: str, function: Any, confirmed: Callable[..., Any]) -> None:
    body, of_weights, of_bias = FUSED[name]
    x = torch.randn(4 if "fold" in name else 6, 8, generator=torch.Generator().manual_seed(3))
    found = confirmed(function(body, w=(12, 8), first=(4,), last=(4,), bias=(12,)), x).alone
    assert (str(found["w"]), str(found["first"])) == (of_weights, of_bias)


@pytest.mark.parametrize("name", PIECES)
def test_what_is_written_or_picked_in_pieces(name: str, function: Any, confirmed: Callable[..., Any]) -> None:
    body, expected = PIECES[name]
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(3))
    assert str(confirmed(function(lambda m, x: body(m, x), p=()), x).joint) == expected
