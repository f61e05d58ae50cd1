"""A step of SGD over many tensors in one kernel, with the 16-bit copies of the weights that the next step uses.

    v ← μ (v + k w) + (g + λ w),   w ← w − η v   (Nesterov: w ← w − η (g + λ w + μ v)),   copy ← w

k being the correction that exponential schedules make where the ordinary learning rate drops, else 0.

It replaces `torch.optim.SGD` without dampening. η, λ and k are read on the device, three numbers per step of the epoch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from isogon.dynamics import chunk_places

_CHUNK = 4096
_KINDS = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16}

# A table of addresses has four rows: weights, momentum buffers, gradients, copies. `places` is `chunk_places`.


@triton.jit
def _sgd(
    addresses,
    places,
    rates,
    steps,
    place,
    momentum,
    tensors,
    KIND: tl.constexpr,
    COPY: tl.constexpr,
    MOMENTUM: tl.constexpr,
    NESTEROV: tl.constexpr,
    CHUNK: tl.constexpr,
):
    chunk = tl.program_id(0)
    tensor = tl.load(places + 3 * chunk)
    start = tl.multiple_of(tl.load(places + 3 * chunk + 1), 16)
    length = tl.load(places + 3 * chunk + 2)
    step = tl.load(place)
    rate, decay, correction = tl.load(rates + step), tl.load(rates + steps + step), tl.load(rates + 2 * steps + step)
    # Tensors begin at multiples of 16 bytes, which lets loads be wide; given for the number, the hint would be lost.
    weights = tl.multiple_of(tl.load(addresses + tensor).to(tl.pointer_type(tl.float32)), 16) + start
    buffers = tl.multiple_of(tl.load(addresses + tensors + tensor).to(tl.pointer_type(tl.float32)), 16) + start
    gradients = tl.multiple_of(tl.load(addresses + 2 * tensors + tensor).to(tl.pointer_type(KIND)), 16) + start
    copies = tl.multiple_of(tl.load(addresses + 3 * tensors + tensor).to(tl.pointer_type(KIND)), 16) + start
    here = tl.arange(0, CHUNK)
    # A whole chunk needs no mask, which would make the loads narrow.
    if start + CHUNK <= length:
        w = tl.load(weights + here)
        g = tl.load(gradients + here).to(tl.float32) + decay * w
        if MOMENTUM:
            v = momentum * (tl.load(buffers + here) + correction * w) + g
            tl.store(buffers + here, v)
            g = g + momentum * v if NESTEROV else v
        w = w - rate * g
        tl.store(weights + here, w)
        if COPY:
            tl.store(copies + here, w.to(KIND))
    else:
        inside = start + here < length
        w = tl.load(weights + here, mask=inside, other=0.0)
        g = tl.load(gradients + here, mask=inside, other=0.0).to(tl.float32) + decay * w
        if MOMENTUM:
            v = momentum * (tl.load(buffers + here, mask=inside, other=0.0) + correction * w) + g
            tl.store(buffers + here, v, mask=inside)
            g = g + momentum * v if NESTEROV else v
        w = w - rate * g
        tl.store(weights + here, w, mask=inside)
        if COPY:
            tl.store(copies + here, w.to(KIND), mask=inside)


class SgdUpdate:
    """The update of `weights`, float32 and dense, whose gradients are of one type and laid out like them.

    `copies` are of the gradients' type, or empty. The gradients' addresses are given after the step was recorded, when
    they are known.
    """

    def __init__(
        self,
        weights: Sequence[torch.Tensor],
        buffers: Sequence[torch.Tensor],
        copies: Sequence[torch.Tensor],
        *,
        kind: torch.dtype,
        momentum: float,
        nesterov: bool,
    ) -> None:
        device = weights[0].device
        self._weights, self._buffers, self._copies = list(weights), list(buffers), list(copies)
        self._places = chunk_places(weights, _CHUNK)
        self._addresses = torch.zeros(4, len(weights), dtype=torch.int64, device=device)
        self._momentum, self._nesterov, self._kind = momentum, nesterov, kind

    def point_to(self, gradients: Sequence[torch.Tensor]) -> None:
        """The gradients of every later step lie here."""
        for weight, gradient in zip(self._weights, gradients, strict=True):
            if gradient.dtype != self._kind or gradient.stride() != weight.stride():
                raise RuntimeError(f"a gradient is laid out as {gradient.stride()}, its weight as {weight.stride()}")
        rows = [self._weights, self._buffers, gradients, self._copies]
        table = [[t.data_ptr() for t in row] or [0] * len(self._weights) for row in rows]
        if any(address % 16 for row in table for address in row):
            raise RuntimeError("a weight, its gradient or its momentum does not begin at a multiple of 16 bytes")
        self._addresses.copy_(torch.tensor(table))

    def launch(self, rates: torch.Tensor, place: torch.Tensor) -> None:
        """One step at the η, λ and k that lie at `place` in the three rows of `rates`."""
        _sgd[(len(self._places),)](
            self._addresses,
            self._places,
            rates,
            rates.shape[1],
            place,
            self._momentum,
            len(self._weights),
            KIND=_KINDS[self._kind],
            COPY=bool(self._copies),
            MOMENTUM=bool(self._buffers),
            NESTEROV=self._nesterov,
            CHUNK=_CHUNK,
        )
