"""Every rule on a small function: the degree it gives, confirmed by rescaling in double precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isogon.symmetry import ScaleMap, check, register_rule, remove_rule

NOT = "not homogeneous"
Confirmed = Callable[..., ScaleMap]

# A case: the function of (module, x), its tensors, and the degrees of "joint" and of each parameter.
# A tuple is the shape of a trainable parameter; a tensor is a buffer. x has the shape (6, 4, 5).
w, v, b, s = (5, 5), (5, 5), (5,), ()
MASK = torch.full((4, 4), float("-inf")).triu(1)
FROZEN = nn.Parameter(torch.linspace(0.5, 1.5, 5), requires_grad=False)
ZERO = nn.Parameter(torch.zeros(5), requires_grad=False)


def by_hand(y: Tensor) -> Tensor:
    """Batch norm as many write it."""
    return (y - y.mean((0, 2))[None, :, None]) / (y.var((0, 2))[None, :, None] + 1e-5).sqrt()


CASES: dict[str, tuple[Callable[..., Any], dict[str, Any], dict[str, str]]] = {
    # products
    "linear": (lambda m, x: F.linear(x, m.w), {"w": w}, {"joint": "1", "w": "1"}),
    "linear bias": (lambda m, x: F.linear(x, m.w, m.b), {"w": w, "b": b}, {"joint": "1", "w": NOT, "b": NOT}),
    "linear frozen bias": (lambda m, x: F.linear(x, m.w, m.b), {"w": w, "b": FROZEN}, {"joint": NOT, "w": NOT}),
    "linear zero bias": (lambda m, x: F.linear(x, m.w, m.b), {"w": w, "b": ZERO}, {"joint": "1", "w": "1"}),
    "two linears": (lambda m, x: x @ m.w @ m.v, {"w": w, "v": v}, {"joint": "2", "w": "1", "v": "1"}),
    "einsum": (lambda m, x: torch.einsum("btd,de->bte", x, m.w), {"w": w}, {"joint": "1", "w": "1"}),
    "einsum three": (
        lambda m, x: torch.einsum("...d,de,ef->...f", x, m.w, m.v),
        {"w": w, "v": v},
        {"joint": "2", "w": "1", "v": "1"},
    ),
    "einsum trace": (lambda m, x: x * torch.einsum("ii->", m.w), {"w": w}, {"joint": "1"}),
    "bmm": (lambda m, x: torch.bmm(x @ m.w, x.mT), {"w": w}, {"joint": "1"}),
    "addmm": (lambda m, x: torch.addmm(m.b, x[:, 0], m.w), {"w": w, "b": b}, {"joint": "1", "w": NOT, "b": NOT}),
    "baddbmm": (lambda m, x: torch.baddbmm(x.mT @ x, (x @ m.w).mT, x), {"w": w}, {"joint": NOT}),
    "outer and dot": (lambda m, x: torch.outer(m.b, m.b) * torch.dot(m.b, x[0, 0]), {"b": b}, {"joint": "3"}),
    "bilinear": (lambda m, x: F.bilinear(x, x @ m.w, m.t), {"w": w, "t": (3, 5, 5)}, {"joint": "2", "t": "1"}),
    "tensordot": (lambda m, x: torch.tensordot(x, m.w, dims=([2], [0])), {"w": w}, {"joint": "1"}),
    "multiplied by itself": (lambda m, x: (x @ m.w) * (x @ m.w), {"w": w}, {"joint": "2"}),
    "quotient": (lambda m, x: (x @ m.w) / (x @ m.v).abs(), {"w": w, "v": v}, {"joint": "0", "w": "1", "v": "-1"}),
    "embedding": (lambda m, x: F.embedding(x.argmax(-1), m.w), {"w": w}, {"joint": "1"}),
    # sums
    "sum of equals": (lambda m, x: x @ m.w + x @ m.v, {"w": w, "v": v}, {"joint": "1", "w": NOT}),
    "sum of unequals": (lambda m, x: x @ m.w + x, {"w": w}, {"joint": NOT, "w": NOT}),
    "add a constant": (lambda m, x: x @ m.w + 0.5, {"w": w}, {"joint": NOT}),
    "subtract zeros": (lambda m, x: x @ m.w - torch.zeros(5), {"w": w}, {"joint": "1"}),
    "subtract itself": (lambda m, x: (lambda y: y - y)(x @ m.w), {"w": w}, {"joint": "any"}),
    "addcmul": (lambda m, x: torch.addcmul(x @ m.w, x @ m.v, x), {"w": w, "v": v}, {"joint": "1"}),
    "addcdiv": (lambda m, x: torch.addcdiv(x @ m.w, x, m.v[0] ** 2), {"w": w, "v": v}, {"joint": NOT}),
    "lerp": (lambda m, x: torch.lerp(x @ m.w, x @ m.v, 0.3), {"w": w, "v": v}, {"joint": "1"}),
    # powers and functions of elements
    "square": (lambda m, x: (x @ m.w).square(), {"w": w}, {"joint": "2"}),
    "cube": (lambda m, x: (x @ m.w) ** 3, {"w": w}, {"joint": "3"}),
    "root": (lambda m, x: (x @ m.w).abs().sqrt(), {"w": w}, {"joint": "1/2"}),
    "third root": (lambda m, x: (x @ m.w).abs() ** (1 / 3), {"w": w}, {"joint": "1/3"}),
    "rsqrt": (lambda m, x: (x @ m.w).square().rsqrt(), {"w": w}, {"joint": "-1"}),
    "reciprocal": (lambda m, x: (x @ m.w).reciprocal(), {"w": w}, {"joint": "-1"}),
    "tensor power": (lambda m, x: (x @ m.w).abs() ** x.abs(), {"w": w}, {"joint": "unknown"}),
    "power zero": (lambda m, x: (x @ m.w) ** 0, {"w": w}, {"joint": "0"}),
    "relu": (lambda m, x: F.relu(x @ m.w), {"w": w}, {"joint": "1"}),
    "relu in place": (lambda m, x: F.relu_(x @ m.w), {"w": w}, {"joint": "1"}),
    "leaky relu": (lambda m, x: F.leaky_relu(x @ m.w), {"w": w}, {"joint": "1"}),
    "rrelu": (lambda m, x: F.rrelu(x @ m.w, training=True), {"w": w}, {"joint": "1"}),
    "prelu": (lambda m, x: F.prelu(x @ m.w, m.a), {"w": w, "a": (1,)}, {"joint": NOT, "w": "1", "a": NOT}),
    "prelu frozen": (lambda m, x: F.prelu(x @ m.w, m.a), {"w": w, "a": torch.tensor([0.2])}, {"joint": "1"}),
    "threshold zero": (lambda m, x: F.threshold(x @ m.w, 0, 0), {"w": w}, {"joint": "1"}),
    "threshold": (lambda m, x: F.threshold(x @ m.w, 0.1, 0), {"w": w}, {"joint": NOT}),
    "clamp at zero": (lambda m, x: (x @ m.w).clamp(min=0), {"w": w}, {"joint": "1"}),
    "clamp above": (lambda m, x: (x @ m.w).clamp(min=0, max=1), {"w": w}, {"joint": NOT}),
    "relu6": (lambda m, x: F.relu6(x @ m.w), {"w": w}, {"joint": NOT}),
    "hardtanh": (lambda m, x: F.hardtanh(x @ m.w), {"w": w}, {"joint": NOT}),
    "maximum": (lambda m, x: torch.maximum(x @ m.w, x @ m.v), {"w": w, "v": v}, {"joint": "1", "w": NOT}),
    "glu": (lambda m, x: F.glu(x @ m.w, dim=1), {"w": w}, {"joint": NOT}),
    "sign": (lambda m, x: torch.sign(x @ m.w), {"w": w}, {"joint": "0"}),
    "comparison with zero": (lambda m, x: x * (x @ m.w > 0), {"w": w}, {"joint": "0"}),
    "comparison with a constant": (lambda m, x: x * (x @ m.w > 0.3), {"w": w}, {"joint": NOT}),
    "comparison of equals": (lambda m, x: x * (x @ m.w > x @ m.v), {"w": w, "v": v}, {"joint": "0", "w": NOT}),
    "where": (lambda m, x: torch.where(x > 0, x @ m.w, x @ m.v), {"w": w, "v": v}, {"joint": "1", "w": NOT}),
    "masked fill": (lambda m, x: (x @ m.w).masked_fill(x > 0, 0.0), {"w": w}, {"joint": "1"}),
    "masked fill constant": (lambda m, x: (x @ m.w).masked_fill(x > 0, 2.0), {"w": w}, {"joint": NOT}),
    "atan2": (lambda m, x: torch.atan2(x @ m.w, x @ m.v), {"w": w, "v": v}, {"joint": "0", "w": NOT}),
    "log": (lambda m, x: (x @ m.w).abs().log(), {"w": w}, {"joint": NOT}),
    "centred log": (
        lambda m, x: (lambda y: y - y.mean(-1, keepdim=True))((x @ m.w).abs().log()),
        {"w": w},
        {"joint": "0", "w": "0"},
    ),
    "log then softmax": (lambda m, x: (x @ m.w).abs().log().softmax(-1), {"w": w}, {"joint": "0"}),
    "item": (lambda m, x: (x @ m.w) / m.w.norm().item(), {"w": w}, {"joint": "0"}),
    # reductions
    "mean": (lambda m, x: (x @ m.w).mean((0, 1)), {"w": w}, {"joint": "1"}),
    "sum": (lambda m, x: (x @ m.w).sum(), {"w": w}, {"joint": "1"}),
    "variance": (lambda m, x: (x @ m.w + m.s).var(-1), {"w": w, "s": s}, {"joint": "2", "w": "2", "s": "0"}),
    "deviation": (lambda m, x: (x @ m.w).std(), {"w": w}, {"joint": "1"}),
    "var mean": (lambda m, x: torch.var_mean(x @ m.w, dim=1)[0], {"w": w}, {"joint": "2"}),
    "norm": (lambda m, x: (x @ m.w).norm(dim=-1), {"w": w}, {"joint": "1"}),
    "infinity norm": (lambda m, x: torch.linalg.norm(x @ m.w, ord=float("inf"), dim=-1), {"w": w}, {"joint": "1"}),
    "matrix norm": (lambda m, x: x * torch.linalg.matrix_norm(m.w), {"w": w}, {"joint": "1"}),
    "count of nonzeros": (lambda m, x: torch.linalg.vector_norm(F.relu(x @ m.w), ord=0), {"w": w}, {"joint": "0"}),
    "amax": (lambda m, x: (x @ m.w).amax(-1), {"w": w}, {"joint": "1"}),
    "max with index": (lambda m, x: (x @ m.w).max(-1)[0], {"w": w}, {"joint": "1"}),
    "argmax": (lambda m, x: x.gather(-1, (x @ m.w).argmax(-1, keepdim=True)), {"w": w}, {"joint": "0"}),
    "spread between extremes": (lambda m, x: torch.sub(*reversed(torch.aminmax(x @ m.w))), {"w": w}, {"joint": "1"}),
    "median": (lambda m, x: (x @ m.w).median(-1)[0], {"w": w}, {"joint": "1"}),
    "prod": (lambda m, x: (x @ m.w).prod(1), {"w": w}, {"joint": "4"}),
    "cumsum": (lambda m, x: (x @ m.w).cumsum(1), {"w": w}, {"joint": "1"}),
    "cumprod": (lambda m, x: (x @ m.w).cumprod(1), {"w": w}, {"joint": "unknown"}),
    "cummax": (lambda m, x: (x @ m.w).cummax(1)[0], {"w": w}, {"joint": "1"}),
    "sort": (lambda m, x: (x @ m.w).sort(-1)[0], {"w": w}, {"joint": "1"}),
    "topk": (lambda m, x: (x @ m.w).topk(2)[0], {"w": w}, {"joint": "1"}),
    "top indices": (lambda m, x: x.gather(-1, (x @ m.w).topk(2)[1]), {"w": w}, {"joint": "0"}),
    "argsort": (lambda m, x: x.gather(-1, (x @ m.w).argsort(-1)), {"w": w}, {"joint": "0"}),
    "logsumexp": (lambda m, x: (x @ m.w).logsumexp(-1), {"w": w}, {"joint": NOT}),
    "softmax": (lambda m, x: (x @ m.w).softmax(-1), {"w": w}, {"joint": NOT}),
    "softmax of normalised": (lambda m, x: F.normalize(x @ m.w, dim=-1).softmax(-1), {"w": w}, {"joint": "0"}),
    "softmax of one": (lambda m, x: (x @ m.w).sum(-1, keepdim=True).softmax(-1), {"w": w}, {"joint": "0"}),
    "softmax with a shift": (lambda m, x: (x + m.s).softmax(-1), {"s": s}, {"joint": "0"}),
    "softmax with a mask": (
        lambda m, x: (F.normalize(x @ m.w, dim=-1)[:, :, :4] + m.k).softmax(-1),
        {"w": w, "k": MASK},
        {"joint": "0"},
    ),
    "fft": (lambda m, x: torch.fft.rfft(x @ m.w).abs(), {"w": w}, {"joint": "1"}),
    # shapes
    "view": (lambda m, x: (x @ m.w).reshape(3, 2, 20).flatten(1), {"w": w}, {"joint": "1"}),
    "permute": (lambda m, x: (x @ m.w).permute(2, 0, 1).mT.movedim(0, -1), {"w": w}, {"joint": "1"}),
    "expand": (lambda m, x: (x @ m.w)[:, :1].expand(-1, 4, -1).repeat(1, 2, 1), {"w": w}, {"joint": "1"}),
    "index": (lambda m, x: (x @ m.w)[:, [0, 2]][..., torch.tensor([1, 0])], {"w": w}, {"joint": "1"}),
    "slices": (
        lambda m, x: torch.cat([(x @ m.w)[:, 1:3], (x @ m.v).narrow(1, 0, 1)], 1),
        {"w": w, "v": v},
        {"joint": "1"},
    ),
    "split": (lambda m, x: torch.mul(*(x @ m.w).chunk(2, 1)), {"w": w}, {"joint": "2"}),
    "unbind": (lambda m, x: sum((x @ m.w).unbind(1)), {"w": w}, {"joint": "1"}),
    "stack": (lambda m, x: torch.stack([x @ m.w, x @ m.v]).sum(0), {"w": w, "v": v}, {"joint": "1"}),
    "roll and flip": (lambda m, x: (x @ m.w).roll(1, 1).flip(2), {"w": w}, {"joint": "1"}),
    "triangle": (lambda m, x: x @ m.w.tril(), {"w": w}, {"joint": "1"}),
    "pad": (lambda m, x: F.pad(x @ m.w, (1, 1)), {"w": w}, {"joint": "1"}),
    "pad with ones": (lambda m, x: F.pad(x @ m.w, (1, 1), value=1.0), {"w": w}, {"joint": NOT}),
    "pad by reflection": (lambda m, x: F.pad(x @ m.w, (1, 1), mode="reflect"), {"w": w}, {"joint": "1"}),
    "unfold": (lambda m, x: (x @ m.w).unfold(1, 2, 1), {"w": w}, {"joint": "1"}),
    "pixel shuffle": (lambda m, x: F.pixel_shuffle((x @ m.w).unsqueeze(-1), 2), {"w": w}, {"joint": "1"}),
    "complex": (
        lambda m, x: torch.view_as_complex((x @ m.w)[..., :4].contiguous().view(6, 4, 2, 2)).abs(),
        {"w": w},
        {"joint": "1"},
    ),
    "scatter": (lambda m, x: x.new_zeros(6, 4, 5).scatter(1, (x > 0).long(), x @ m.w), {"w": w}, {"joint": "1"}),
    "index add": (lambda m, x: (x @ m.w).index_add(0, torch.tensor([1]), x[:1]), {"w": w}, {"joint": NOT}),
    "where index": (lambda m, x: (x @ m.w).index_select(1, torch.tensor([0, 3])), {"w": w}, {"joint": "1"}),
    # randomness and constants
    "dropout": (lambda m, x: F.dropout(x @ m.w, 0.4), {"w": w}, {"joint": "1"}),
    "alpha dropout": (lambda m, x: F.alpha_dropout(x @ m.w, 0.4, training=True), {"w": w}, {"joint": NOT}),
    "bernoulli": (lambda m, x: (x @ m.w) * torch.empty(6, 1, 1).bernoulli_(0.7), {"w": w}, {"joint": "1"}),
    "creation": (lambda m, x: (x @ m.w) * torch.arange(5) + torch.zeros(5) * torch.ones(5), {"w": w}, {"joint": "1"}),
    "cast": (lambda m, x: (x @ m.w).double().to(x.dtype), {"w": w}, {"joint": "1"}),
    "cast to integers": (lambda m, x: (x @ m.w * 9).long().to(x.dtype), {"w": w}, {"joint": NOT}),
    "round": (lambda m, x: (x @ m.w * 9).round(), {"w": w}, {"joint": NOT}),
    "detach": (lambda m, x: x @ m.w / m.w.norm().detach(), {"w": w}, {"joint": "0"}),
    # losses
    "cross entropy": (lambda m, x: F.cross_entropy(x[:, 0] @ m.w, torch.arange(6) % 5), {"w": w}, {"joint": NOT}),
    "cross entropy of normalised": (
        lambda m, x: F.cross_entropy(F.normalize(x[:, 0] @ m.w, dim=-1), torch.arange(6) % 5),
        {"w": w},
        {"joint": "0"},
    ),
    "cross entropy with a shift": (
        lambda m, x: F.cross_entropy(x[:, 0] + m.s, torch.arange(6) % 5),
        {"s": s},
        {"joint": "0"},
    ),
    "squared error": (lambda m, x: F.mse_loss(x @ m.w, x @ m.v), {"w": w, "v": v}, {"joint": "2", "w": NOT}),
    "absolute error": (lambda m, x: F.l1_loss(x @ m.w, x), {"w": w}, {"joint": NOT}),
    "cosine similarity": (
        lambda m, x: F.cosine_similarity(x @ m.w, x @ m.v, dim=-1),
        {"w": w, "v": v},
        {"joint": "0", "w": "0"},
    ),
    "cdist": (lambda m, x: torch.cdist(x @ m.w, x @ m.v), {"w": w, "v": v}, {"joint": "1", "w": NOT}),
    # normalisations
    "layer norm": (lambda m, x: F.layer_norm(x @ m.w, (5,)), {"w": w}, {"joint": "0"}),
    "layer norm affine": (
        lambda m, x: F.layer_norm(x @ m.w, (5,), m.g, m.b),
        {"w": w, "g": b, "b": b},
        {"joint": "1", "w": "0", "g": NOT, "b": NOT},
    ),
    "layer norm frozen shift": (
        lambda m, x: F.layer_norm(x @ m.w, (5,), m.g, m.k),
        {"w": w, "g": b, "k": FROZEN},
        {"joint": NOT, "w": "0"},
    ),
    "layer norm after a bias": (
        lambda m, x: F.layer_norm(x @ m.w + m.b, (5,)),
        {"w": w, "b": b},
        {"joint": "0", "w": NOT, "b": NOT},
    ),
    "layer norm after a constant": (
        lambda m, x: F.layer_norm(x @ m.w + m.s, (5,)),
        {"w": w, "s": s},
        {"joint": "0", "w": "0", "s": "0"},
    ),
    "layer norm over a shifted half": (
        lambda m, x: F.layer_norm(torch.cat([x + m.s, x], -1), (10,)),
        {"s": s},
        {"joint": NOT},
    ),
    "layer norm of one value": (
        lambda m, x: F.layer_norm((x @ m.w).sum(-1, keepdim=True), (1,)),
        {"w": w},
        {"joint": "any"},
    ),
    "rms norm": (lambda m, x: F.rms_norm(x @ m.w, (5,)), {"w": w}, {"joint": "0"}),
    "rms norm after a constant": (
        lambda m, x: F.rms_norm(x @ m.w + m.s, (5,)),
        {"w": w, "s": s},
        {"joint": "0", "w": NOT, "s": NOT},
    ),
    "group norm": (lambda m, x: F.group_norm(x @ m.w, 2), {"w": w}, {"joint": "0"}),
    "group norm after a bias": (
        lambda m, x: F.group_norm(x @ m.w + m.c, 2),
        {"w": w, "c": (4, 1)},
        {"joint": "0", "w": NOT, "c": NOT},
    ),
    "group norm of each channel": (
        lambda m, x: F.group_norm(x @ m.w + m.c, 4),
        {"w": w, "c": (4, 1)},
        {"joint": "0", "w": "0", "c": "0"},
    ),
    "batch norm": (
        lambda m, x: F.batch_norm(x @ m.w + m.c, None, None, training=True),
        {"w": w, "c": (4, 1)},
        {"joint": "0", "w": "0", "c": "0"},
    ),
    "batch norm with given statistics": (
        lambda m, x: (lambda y: F.batch_norm(y, y.mean((0, 2)).detach(), y.var((0, 2)).detach()))(x @ m.w + m.c),
        {"w": w, "c": (4, 1)},
        {"joint": "0", "w": "0", "c": "0"},
    ),
    "instance norm": (
        lambda m, x: F.instance_norm(x @ m.w + m.c),
        {"w": w, "c": (4, 1)},
        {"joint": "0", "w": "0", "c": "0"},
    ),
    "batch norm by hand": (
        lambda m, x: by_hand(x @ m.w + m.c),
        {"w": w, "c": (4, 1)},
        {"joint": "0", "w": "0", "c": "0"},
    ),
    "l2 with eps": (lambda m, x: x @ m.w / ((x @ m.w).norm(dim=-1, keepdim=True) + 1e-6), {"w": w}, {"joint": "0"}),
    "l2 with a large constant": (
        lambda m, x: x @ m.w / ((x @ m.w).norm(dim=-1, keepdim=True) + 0.5),
        {"w": w},
        {"joint": NOT},
    ),
    "eps on what may be negative": (
        lambda m, x: x @ m.w / ((x @ m.w).sum(-1, keepdim=True) + 1e-3),
        {"w": w},
        {"joint": NOT},
    ),
    "tiny eps on what may be negative": (
        lambda m, x: x @ m.w / ((x @ m.w).sum(-1, keepdim=True) + 1e-15),
        {"w": w},
        {"joint": "0"},
    ),
    "eps first, the rest scaled": (
        lambda m, x: x @ (m.w / torch.add(torch.tensor(1e-4), m.w.norm(dim=0, keepdim=True), alpha=0.5)),
        {"w": w},
        {"joint": "0"},
    ),
    "a constant above every eps": (
        lambda m, x: x @ m.w / ((x @ m.w).abs().mean() + 0.005),
        {"w": w},
        {"joint": NOT},
    ),
    "softmax by hand": (
        lambda m, x: (
            (F.normalize(x @ m.w, dim=-1) + m.s).exp() / (F.normalize(x @ m.w, dim=-1) + m.s).exp().sum(-1, True)
        ),
        {"w": w, "s": s},
        {"w": "0", "s": "unknown"},
    ),
    "eps in the numerator": (lambda m, x: ((x @ m.w).abs() + 1e-3) / x.abs(), {"w": w}, {"joint": NOT}),
    "eps that is no eps": (lambda m, x: ((x @ m.w).abs() + 1e-3) * 1.0, {"w": w}, {"joint": NOT}),
    "weight norm by hand": (lambda m, x: x @ (m.w / m.w.norm(dim=0)), {"w": w}, {"joint": "0"}),
    "weight standardisation": (
        lambda m, x: x @ ((m.w - m.w.mean(0)) / (m.w.var(0, keepdim=True) + 1e-5).sqrt()),
        {"w": w},
        {"joint": "0"},
    ),
    # attention
    "attention": (lambda m, x: F.scaled_dot_product_attention(x @ m.w, x, x), {"w": w}, {"joint": NOT}),
    "attention on values": (
        lambda m, x: F.scaled_dot_product_attention(x, x, x @ m.w, is_causal=True),
        {"w": w},
        {"joint": "1"},
    ),
    "attention, normalised": (
        lambda m, x: F.scaled_dot_product_attention(F.normalize(x @ m.w, dim=-1), x, x, attn_mask=m.k),
        {"w": w, "k": MASK},
        {"joint": "0"},
    ),
    "bias of the keys": (lambda m, x: F.scaled_dot_product_attention(x, x + m.b, x), {"b": b}, {"joint": "0"}),
    "bias of the queries": (
        lambda m, x: F.scaled_dot_product_attention(x + m.b, x @ m.w, x),
        {"b": b, "w": w},
        {"joint": NOT, "b": NOT},
    ),
    "positions added to the values, batch norm": (
        lambda m, x: F.batch_norm(F.scaled_dot_product_attention(x, x, x + m.p).mT, None, None, training=True),
        {"p": (4, 1)},
        {"joint": "unknown"},  # attention that is the same everywhere would make the shift so
    ),
    "bias of the values, batch norm": (
        lambda m, x: F.batch_norm(F.scaled_dot_product_attention(x, x, x + m.b).mT, None, None, training=True),
        {"b": b},
        {"joint": "0"},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_rule_gives_the_degree_that_rescaling_finds(name: str, function: Any, confirmed: Confirmed) -> None:
    body, tensors, expected = CASES[name]
    scale_map = confirmed(function(body, **tensors), torch.randn(6, 4, 5, generator=torch.Generator().manual_seed(3)))
    found = {"joint": str(scale_map.joint), **{k: str(d) for k, d in scale_map.alone.items()}}
    assert {key: found[key] for key in expected} == expected


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], str]] = {
    "conv1d": (lambda: nn.Conv1d(4, 6, 3, bias=False), (2, 4, 8), "1"),
    "conv2d stride": (lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1, bias=False), (2, 4, 8, 8), "1"),
    "conv2d bias": (lambda: nn.Conv2d(4, 6, 3), (2, 4, 8, 8), "1"),
    "conv2d without batch": (lambda: nn.Conv2d(4, 6, 3), (4, 8, 8), "1"),
    "conv2d same": (lambda: nn.Conv2d(4, 6, 3, padding="same"), (2, 4, 8, 8), "1"),
    "conv3d grouped": (lambda: nn.Conv3d(4, 6, 2, groups=2), (2, 4, 3, 3, 3), "1"),
    "conv transposed": (lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2), (2, 4, 5, 5), "1"),
    "max pool": (lambda: nn.Sequential(nn.Conv2d(4, 6, 1), nn.MaxPool2d(2)), (2, 4, 8, 8), "1"),
    "average pool": (lambda: nn.Sequential(nn.Conv2d(4, 6, 1), nn.AvgPool2d(3, 2, 1)), (2, 4, 8, 8), "1"),
    "adaptive pools": (
        lambda: nn.Sequential(nn.Conv2d(4, 6, 1), nn.AdaptiveAvgPool2d(4), nn.AdaptiveMaxPool2d(1)),
        (2, 4, 8, 8),
        "1",
    ),
    "lp pool": (lambda: nn.Sequential(nn.Conv2d(4, 6, 1), nn.LPPool2d(3, 2)), (2, 4, 8, 8), "1"),
    "upsample": (
        lambda: nn.Sequential(nn.Conv2d(4, 6, 1), nn.Upsample(scale_factor=2, mode="bicubic")),
        (2, 4, 4, 4),
        "1",
    ),
    "local response norm": (lambda: nn.Sequential(nn.Conv2d(4, 6, 1), nn.LocalResponseNorm(2)), (2, 4, 4, 4), NOT),
    "flatten": (
        lambda: nn.Sequential(nn.Conv2d(4, 6, 1), nn.Flatten(), nn.Linear(96, 3, bias=False)),
        (2, 4, 4, 4),
        "2",
    ),
    "weight norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 6, 3, bias=False)), (2, 4, 8, 8), "1"),
    "spectral norm": (lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(4, 6, bias=False)), (2, 4), "0"),
    "unfold and fold": (lambda: nn.Sequential(nn.Conv2d(4, 6, 1, bias=False), nn.Unfold(2)), (2, 4, 4, 4), "1"),
    "GRU": (lambda: nn.GRU(4, 6), (3, 2, 4), "not homogeneous"),
    "LSTM": (lambda: nn.LSTM(4, 6, num_layers=2, bidirectional=True), (3, 2, 4), "not homogeneous"),
    "LSTM with projections": (lambda: nn.LSTM(4, 6, proj_size=3), (3, 2, 4), "unknown"),
}


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_norm_does_not_make_a_recurrent_layer_unknown(kind: type[nn.Module], confirmed: Confirmed) -> None:
    class BetweenNorms(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.cell, self.after = nn.LayerNorm(4), kind(4, 5), nn.LayerNorm(5)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.after(self.cell(self.before(x))[0])
            return out

    degrees = confirmed(BetweenNorms(), torch.randn(3, 2, 4)).alone
    assert {degree.verdict for degree in degrees.values()} == {"not invariant"}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_gives_the_degree_that_rescaling_finds(name: str, confirmed: Confirmed) -> None:
    build, shape, expected = LAYERS[name]
    torch.manual_seed(0)
    assert str(confirmed(build(), torch.randn(shape)).joint) == expected


@pytest.mark.parametrize(
    "activation",
    [nn.Sigmoid, nn.Tanh, nn.GELU, nn.SiLU, nn.Mish, nn.ELU, nn.SELU, nn.CELU, nn.Softplus, nn.Hardswish,
     nn.Hardsigmoid, nn.ReLU6, nn.Softsign, nn.LogSigmoid, nn.Softshrink, nn.Hardshrink, nn.Tanhshrink],
)  # fmt: skip
def test_a_function_that_needs_degree_0(activation: type[nn.Module], confirmed: Confirmed) -> None:
    x = torch.randn(8, 5)
    assert str(confirmed(nn.Sequential(nn.Linear(5, 4), activation()), x).joint) == NOT
    normalised = nn.Sequential(nn.Linear(5, 4), nn.LayerNorm(4, elementwise_affine=False), activation())
    assert str(confirmed(normalised, x).joint) == "0"


def test_an_operation_without_a_rule_is_unknown_and_named(function: Any) -> None:
    model = function(lambda m, x: torch.special.bessel_j0(x @ m.w), w=(5, 5))
    found = check(model, torch.randn(3, 5))
    assert (str(found.joint), found.verdict, found.is_invariant) == ("unknown", "unknown", False)
    assert "aten.special_bessel_j0" in found.explain()
    assert "register_rule" in found.explain("w")


def test_an_operation_without_a_rule_does_not_matter_on_constants(function: Any) -> None:
    model = function(lambda m, x: F.normalize(torch.special.bessel_j0(x) @ m.w, dim=-1), w=(5, 5))
    assert check(model, torch.randn(3, 5)).is_invariant


def test_a_user_adds_a_rule(function: Any, confirmed: Confirmed) -> None:
    model = function(lambda m, x: torch.nextafter(x @ m.w, x @ m.v), w=(5, 5), v=(5, 5))
    x = torch.randn(3, 5)
    assert str(check(model, x).joint) == "unknown"

    @register_rule("aten.nextafter")
    def nextafter(op: Any, self: Any, other: Any) -> Any:
        return op.join(self, other, "is next to")

    try:
        assert str(check(model, x).joint) == "1"
    finally:
        remove_rule("aten.nextafter")
    assert str(check(model, x).joint) == "unknown"


def test_a_rule_that_fails_gives_unknown(function: Any) -> None:
    model = function(lambda m, x: torch.special.bessel_j1(x @ m.w), w=(5, 5))

    @register_rule("aten.special_bessel_j1")
    def broken(op: Any, self: Any) -> Any:
        raise ZeroDivisionError("no")

    try:
        found = check(model, torch.randn(3, 5))
    finally:
        remove_rule("aten.special_bessel_j1")
    assert str(found.joint) == "unknown"
    assert "ZeroDivisionError" in found.explain()


@pytest.mark.parametrize("name", ["relu", "a.b.c.d", "", ".relu"])
def test_a_rule_needs_a_proper_name(name: str) -> None:
    with pytest.raises(ValueError, match="namespace"):
        register_rule(name)


class Written(nn.Module):
    """A biased linear layer and a function of its output."""

    def __init__(self, function) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 4)
        self.function = function

    def forward(self, x):
        return self.function(self.linear(x))


def standardised(y):
    """Batch norm as one writes it out, with the variance as E[y²] − E[y]²."""
    mean = y.mean(0, keepdim=True)
    variance = (y * y).mean(0, keepdim=True) - mean.pow(2)
    return (y - mean) / variance.sqrt()


def test_a_variance_written_out_is_blind_to_the_bias():
    found = check(Written(standardised), torch.randn(9, 5))
    assert found.is_invariant
    assert set(found.invariant) == {"linear.weight", "linear.bias"}
    # over other dimensions than the mean's it is no variance
    other = check(Written(lambda y: ((y * y).mean(1) - y.mean(0).pow(2).sum()).tanh()), torch.randn(9, 5))
    assert not other.is_invariant


def test_shifts_that_may_cancel_are_not_called_a_break():
    """(y − min)/(max − min) is invariant, which the rules cannot prove: unknown, never "not"."""
    found = check(Written(lambda y: (y - y.amin(0)) / (y.amax(0) - y.amin(0))), torch.randn(9, 5))
    assert found.is_invariant  # weight and bias together
    assert found.alone["linear.weight"].verdict == "unknown"
    assert "perhaps nothing of it is left" in found.explain("linear.weight")
    # a layer norm written by hand does not remove a bias, and that is certain
    by_hand = check(Written(lambda y: (y - y.mean(1, keepdim=True)) / y.std(1, keepdim=True)), torch.randn(9, 5))
    assert by_hand.alone["linear.weight"].verdict == "not invariant"


def test_average_pooling_that_ignores_its_padding_keeps_a_bias_constant():
    def network(counted):
        return nn.Sequential(
            nn.Conv2d(2, 4, 3), nn.AvgPool2d(3, 2, 1, count_include_pad=counted), nn.BatchNorm2d(4, affine=False)
        )

    assert set(check(network(False), torch.randn(3, 2, 9, 9)).invariant) == {"0.weight", "0.bias"}
    assert check(network(True), torch.randn(3, 2, 9, 9)).invariant == ()


CHECKER = torch.arange(20).reshape(4, 5) % 2 == 0


def mixed(m: Any, x: Tensor) -> Tensor:
    """Elements of degree 1 and of degree 0, in the pattern of a chess board."""
    return torch.where(CHECKER, x @ m.w, x)


PICKS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "where": lambda m, x: torch.where(CHECKER, mixed(m, x), x @ m.w),
    "masked fill": lambda m, x: mixed(m, x).masked_fill(~CHECKER, 0.0),
    "product with a mask": lambda m, x: mixed(m, x) * CHECKER,
    "slice": lambda m, x: mixed(m, x)[:, ::2, ::2],
    "index": lambda m, x: mixed(m, x).flatten(1)[:, torch.arange(0, 20, 2)],
    "diagonal": lambda m, x: mixed(m, x).diagonal(dim1=1, dim2=2),
    "triangle": lambda m, x: torch.where(torch.ones(4, 5).tril() > 0, x @ m.w, x).tril(),
    "written, then cut off": lambda m, x: torch.slice_scatter(x @ m.w, x[:, :1], 1, 0, 1)[:, 1:],
    "padded, then cut off": lambda m, x: F.pad(x @ m.w, (0, 1), value=2.0)[..., :-1],
    "beside what is broken": lambda m, x: torch.where(CHECKER, (x @ m.w).tanh(), x)[:, 1::2, ::2],
}


@pytest.mark.parametrize("pick", PICKS.values(), ids=PICKS)
def test_part_of_a_choice_may_have_one_degree(pick: Any, function: Any, confirmed: Confirmed) -> None:
    found = confirmed(function(pick, w=w), torch.randn(6, 4, 5))
    assert str(found.joint) == "unknown"
    assert "of which a part may have one degree" in found.explain()


def test_a_whole_choice_and_one_beside_zeros_are_certain(function: Any, confirmed: Confirmed) -> None:
    for whole in (
        mixed,
        lambda m, x: mixed(m, x).mean((1, 2)),
        lambda m, x: torch.where(CHECKER, (x @ m.w).tanh(), 0.0)[:, 0],
        lambda m, x: torch.where(CHECKER, (x @ m.w).tanh(), (x @ m.w).cos())[:, 0],
    ):
        found = confirmed(function(whole, w=w), torch.randn(6, 4, 5))
        assert str(found.joint) == NOT


GATED: dict[str, tuple[Callable[[Any, Tensor], Tensor], str]] = {
    "a channel of zeros, gated": (lambda m, x: torch.cat([x[:, :1] * 0, x[:, 1:]], 1) * m.s.sigmoid(), "unknown"),
    "zeros beside what is gated": (lambda m, x: torch.cat([x[:, :1] * 0, x[:, 1:] * m.s.sigmoid()], 1), "unknown"),
    "masked": (lambda m, x: (x * m.s.sigmoid()).masked_fill(CHECKER, 0.0), "unknown"),
    "part of the channels": (lambda m, x: torch.cat([x[:, :1], x[:, 1:] * m.s.sigmoid()], 1), NOT),
    "part of the elements": (lambda m, x: torch.where(CHECKER, x, x * m.s.sigmoid()), NOT),
}


@pytest.mark.parametrize(("gated", "degree"), GATED.values(), ids=GATED)
def test_zeros_do_not_hide_a_factor_that_a_norm_may_remove(
    gated: Any, degree: str, function: Any, confirmed: Confirmed
) -> None:
    model = function(lambda m, x: F.layer_norm(gated(m, x), (4, 5)), s=s)
    assert str(confirmed(model, torch.randn(6, 4, 5)).joint) == degree
