"""A step of SGD, AdamW or Lion, and both ends of one of Muon, over many tensors in one kernel.

With the step come the 16-bit copies of the weights that the next forward pass uses, and a moving average of the
weights where there is one. What differs from step to step is read on the device: a column of `rates` for each step of
the epoch, its rows in the order of `Rate`, and by how much the gradient is clipped. So a recorded step needs no new
recording when the schedule moves on.

The formulas are those of `torch.optim.SGD` without dampening, `torch.optim.AdamW`, `optim.Lion` and `torch.optim.Muon`,
with g the clipped gradient, η and λ learning rate and weight decay:

    SGD    v ← μ (v + k w) + (g + λ w),   w ← w − η v   (Nesterov: w ← w − η (g + λ w + μ v))
    AdamW  m ← β₁ m + (1 − β₁) g,   s ← β₂ s + (1 − β₂) g²,   w ← (1 − ηλ) w − η (m/c₁) / (√(s)/c₂ + ε)
    Lion   w ← (1 − ηλ) w − η sign(β₁ m + (1 − β₁) g),   m ← β₂ m + (1 − β₂) g
    Muon   m ← μ m + (1 − μ) g,   u ← (1 − μ) g + μ m;   then, u made orthogonal,   w ← (1 − ηλ) w − η r u

k being the correction that exponential schedules make where the ordinary learning rate drops, else 0; c₁ and c₂
AdamW's bias corrections.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import torch
import triton
import triton.language as tl

from isogon.dynamics import chunk_places


class Rate(IntEnum):
    """Rows of a table of rates."""

    LR = 0
    DECAY = 1
    #: SGD's k
    CORRECTION = 2
    #: AdamW's c₁ and c₂: 1 − β₁ᵗ and √(1 − β₂ᵗ)
    FIRST_BIAS = 3
    SECOND_BIAS = 4
    #: what the average takes of the new weights
    AVERAGE = 5


class Rule(IntEnum):
    """What the kernel does; Muon's step begins with one and ends with another."""

    SGD = 0
    NESTEROV = 1
    ADAMW = 2
    LION = 3
    MUON_BEGINS = 4
    MUON_ENDS = 5


_CHUNK = 4096
_KINDS = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16}
_NESTEROV, _ADAMW, _LION, _MUON_BEGINS = (
    tl.constexpr(int(rule)) for rule in (Rule.NESTEROV, Rule.ADAMW, Rule.LION, Rule.MUON_BEGINS)
)

# A table of addresses has six rows: weights, gradients, first and second buffers, copies, averages; `places` is
# `chunk_places`. Tensors begin at multiples of 16 bytes, which lets loads be wide.


@triton.jit
def _pointer(addresses, row, tensors, tensor, start, KIND: tl.constexpr):
    address = tl.load(addresses + row * tensors + tensor)
    return tl.multiple_of(address.to(tl.pointer_type(KIND)), 16) + start


@triton.jit
def _step_chunk(
    weights,
    gradients,
    firsts,
    seconds,
    copies,
    averages,
    inside,
    rates,
    steps,
    step,
    clip,
    beta1,
    rest1,
    beta2,
    rest2,
    eps,
    ratio,
    RULE: tl.constexpr,
    KIND: tl.constexpr,
    COPY: tl.constexpr,
    FIRST: tl.constexpr,
    AVERAGE: tl.constexpr,
):
    rate, decay = tl.load(rates + step), tl.load(rates + steps + step)
    w = tl.load(weights, mask=inside)
    g = tl.load(gradients, mask=inside).to(tl.float32)
    if clip is not None:
        g = g * tl.load(clip)
    if RULE <= _NESTEROV:
        g = g + decay * w
        if FIRST:
            correction = tl.load(rates + 2 * steps + step)
            v = beta1 * (tl.load(firsts, mask=inside) + correction * w) + g
            tl.store(firsts, v, mask=inside)
            g = g + beta1 * v if RULE == _NESTEROV else v
        w = w - rate * g
    elif RULE == _ADAMW:
        m = tl.load(firsts, mask=inside)
        m = m + rest1 * (g - m)
        s = beta2 * tl.load(seconds, mask=inside) + rest2 * g * g
        tl.store(firsts, m, mask=inside)
        tl.store(seconds, s, mask=inside)
        size = rate / tl.load(rates + 3 * steps + step)
        w = w * (1 - rate * decay) - size * (m / (tl.sqrt(s) / tl.load(rates + 4 * steps + step) + eps))
    elif RULE == _LION:
        m = tl.load(firsts, mask=inside)
        u = m + rest1 * (g - m)
        sign = tl.where(u > 0, 1.0, tl.where(u < 0, -1.0, u))  # of a NaN it is that NaN
        tl.store(firsts, m + rest2 * (g - m), mask=inside)
        w = w * (1 - rate * decay) - rate * sign
    elif RULE == _MUON_BEGINS:
        m = tl.load(firsts, mask=inside)
        m = m + rest1 * (g - m)
        tl.store(firsts, m, mask=inside)
        tl.store(copies, (g + beta1 * (m - g)).to(KIND), mask=inside)
    else:
        w = w * (1 - rate * decay) - rate * ratio * g
    if RULE != _MUON_BEGINS:
        tl.store(weights, w, mask=inside)
        if COPY:
            tl.store(copies, w.to(KIND), mask=inside)
        if AVERAGE:
            a = tl.load(averages, mask=inside)
            tl.store(averages, a + tl.load(rates + 5 * steps + step) * (w - a), mask=inside)


@triton.jit
def _update(
    addresses,
    places,
    rates,
    steps,
    place,
    clip,
    beta1,
    rest1,
    beta2,
    rest2,
    eps,
    ratio,
    tensors,
    RULE: tl.constexpr,
    GRADIENT: tl.constexpr,
    KIND: tl.constexpr,
    COPY: tl.constexpr,
    FIRST: tl.constexpr,
    AVERAGE: tl.constexpr,
    CHUNK: tl.constexpr,
):
    chunk = tl.program_id(0)
    tensor = tl.load(places + 3 * chunk)
    start = tl.multiple_of(tl.load(places + 3 * chunk + 1), 16)
    length = tl.load(places + 3 * chunk + 2)
    here = tl.arange(0, CHUNK)
    weights = _pointer(addresses, 0, tensors, tensor, start, tl.float32) + here
    gradients = _pointer(addresses, 1, tensors, tensor, start, GRADIENT) + here
    firsts = _pointer(addresses, 2, tensors, tensor, start, tl.float32) + here
    seconds = _pointer(addresses, 3, tensors, tensor, start, tl.float32) + here
    copies = _pointer(addresses, 4, tensors, tensor, start, KIND) + here
    averages = _pointer(addresses, 5, tensors, tensor, start, tl.float32) + here
    step = tl.load(place)
    # A whole chunk needs no mask, which would make the loads narrow.
    if start + CHUNK <= length:
        _step_chunk(
            weights, gradients, firsts, seconds, copies, averages, None, rates, steps, step, clip, beta1, rest1,
            beta2, rest2, eps, ratio, RULE, KIND, COPY, FIRST, AVERAGE,
        )  # fmt: skip
    else:
        _step_chunk(
            weights, gradients, firsts, seconds, copies, averages, start + here < length, rates, steps, step, clip,
            beta1, rest1, beta2, rest2, eps, ratio, RULE, KIND, COPY, FIRST, AVERAGE,
        )  # fmt: skip


class TensorUpdate:
    """`rule` on `weights`, float32 and dense, whose gradients are of one type and laid out like them.

    `copies` are of one type, and like `firsts` and `seconds` (the optimizer's buffers) and `averages` may be empty. The
    gradients' addresses are given after the step was recorded, when they are known. `ratio` is Muon's, by which its
    rate is larger than the schedule's.
    """

    def __init__(
        self,
        rule: Rule,
        weights: Sequence[torch.Tensor],
        *,
        firsts: Sequence[torch.Tensor] = (),
        seconds: Sequence[torch.Tensor] = (),
        copies: Sequence[torch.Tensor] = (),
        averages: Sequence[torch.Tensor] = (),
        gradient: torch.dtype = torch.float32,
        betas: tuple[float, float] = (0.0, 0.0),
        eps: float = 0.0,
        ratio: float = 1.0,
    ) -> None:
        self._rule, self._gradient, self._eps, self._ratio = rule, gradient, eps, ratio
        # A kernel's numbers are float32, and 1 − β of such a β would be off by 1e-5.
        self._betas = [number for beta in betas for number in (beta, 1 - beta)]
        self._weights, self._others = list(weights), [list(row) for row in (firsts, seconds, copies, averages)]
        self._places = chunk_places(weights, _CHUNK)
        self._addresses = torch.zeros(6, len(weights), dtype=torch.int64, device=weights[0].device)

    def point_to(self, gradients: Sequence[torch.Tensor]) -> None:
        """The gradients of every later step lie here."""
        for weight, gradient in zip(self._weights, gradients, strict=True):
            if gradient.dtype != self._gradient or gradient.stride() != weight.stride():
                raise RuntimeError(f"a gradient is laid out as {gradient.stride()}, its weight as {weight.stride()}")
        rows = [self._weights, list(gradients), *self._others]
        table = [[t.data_ptr() for t in row] or [0] * len(self._weights) for row in rows]
        if any(address % 16 for row in table for address in row):
            raise RuntimeError("a weight, its gradient or a buffer does not begin at a multiple of 16 bytes")
        self._addresses.copy_(torch.tensor(table))

    def launch(self, rates: torch.Tensor, place: torch.Tensor, clip: torch.Tensor | None = None) -> None:
        """One step at the rates that lie at `place` in the rows of `rates`; gradients are multiplied by `clip`."""
        firsts, _, copies, averages = self._others
        _update[(len(self._places),)](
            self._addresses,
            self._places,
            rates,
            rates.shape[1],
            place,
            clip,
            *self._betas,
            self._eps,
            self._ratio,
            len(self._weights),
            RULE=int(self._rule),
            GRADIENT=_KINDS[self._gradient],
            KIND=_KINDS[copies[0].dtype if copies else torch.float32],
            COPY=bool(copies),
            FIRST=bool(firsts),
            AVERAGE=bool(averages),
            CHUNK=_CHUNK,
        )
