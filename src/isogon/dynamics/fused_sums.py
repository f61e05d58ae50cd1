"""The sums of `sums.Sums` on a CUDA device, by one Triton kernel before a step and one after it.

An eager training step of a small network is bound by the launching of kernels, so a monitor that measures every step
should launch few: here each number is read once on either side of the step. Addresses travel in a table, because the
gradients may lie somewhere else as soon as `zero_grad` has let them go.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

Tensors = Sequence[torch.Tensor]
Optional = Sequence[torch.Tensor | None]

# Elements that one program adds up.
_CHUNK = 4096
_TYPES = {torch.float64: tl.float64, torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


# The table of addresses has four rows: weights, gradients, momentum buffers, copy. `places` has for each chunk its
# tensor, where in that it starts, and the tensor's length.


@triton.jit
def _values(address, offsets, length, KIND: tl.constexpr):
    """Numbers of a tensor; an address of 0 stands for zeros."""
    end = tl.where(address != 0, length, 0)
    return tl.load(address.to(tl.pointer_type(KIND)) + offsets, mask=offsets < end, other=0.0)


@triton.jit
def _before(addresses, places, out, KIND: tl.constexpr, WIDE: tl.constexpr, TENSORS: tl.constexpr, CHUNK: tl.constexpr):
    """Of one chunk, copy the weights w, and add up w², g², wg and vg: columns 0, 1, 3, 4 of `out`."""
    chunk = tl.program_id(0)
    tensor = tl.load(places + 3 * chunk)
    offsets = tl.load(places + 3 * chunk + 1) + tl.arange(0, CHUNK)
    length = tl.load(places + 3 * chunk + 2)
    kept = _values(tl.load(addresses + tensor), offsets, length, KIND)
    copy = tl.load(addresses + 3 * TENSORS + tensor).to(tl.pointer_type(KIND))
    tl.store(copy + offsets, kept, mask=offsets < length)
    w = kept.to(WIDE)
    g = _values(tl.load(addresses + TENSORS + tensor), offsets, length, KIND).to(WIDE)
    v = _values(tl.load(addresses + 2 * TENSORS + tensor), offsets, length, KIND).to(WIDE)
    tl.store(out + 6 * chunk, tl.sum(w * w, 0).to(tl.float64))
    tl.store(out + 6 * chunk + 1, tl.sum(g * g, 0).to(tl.float64))
    tl.store(out + 6 * chunk + 3, tl.sum(w * g, 0).to(tl.float64))
    tl.store(out + 6 * chunk + 4, tl.sum(v * g, 0).to(tl.float64))


@triton.jit
def _after(
    addresses,
    places,
    out,
    KIND: tl.constexpr,
    WIDE: tl.constexpr,
    TENSORS: tl.constexpr,
    CHUNK: tl.constexpr,
    EPOCH: tl.constexpr,
):
    """Of one chunk, with a the copy and b the weights, add up (a − b)² and (a − b)b: columns 2, 5; b²: column 0."""
    chunk = tl.program_id(0)
    tensor = tl.load(places + 3 * chunk)
    offsets = tl.load(places + 3 * chunk + 1) + tl.arange(0, CHUNK)
    length = tl.load(places + 3 * chunk + 2)
    b = _values(tl.load(addresses + tensor), offsets, length, KIND).to(WIDE)
    change = _values(tl.load(addresses + 3 * TENSORS + tensor), offsets, length, KIND).to(WIDE) - b
    tl.store(out + 6 * chunk + 2, tl.sum(change * change, 0).to(tl.float64))
    tl.store(out + 6 * chunk + 5, tl.sum(change * b, 0).to(tl.float64))
    if EPOCH:
        tl.store(out + 6 * chunk, tl.sum(b * b, 0).to(tl.float64))


class FusedSums:
    """For CUDA. A copy is a list of tensors like the parameters, which must be dense."""

    def __init__(self, parameters: Tensors) -> None:
        self._parameters = list(parameters)
        self._device = parameters[0].device
        self._types = [p.dtype for p in parameters]
        self._strides = [p.stride() for p in parameters]
        self._none: list[torch.Tensor | None] = [None] * len(parameters)
        lengths = torch.tensor([p.numel() for p in parameters])
        chunks = -(-lengths // _CHUNK)
        self._bounds = torch.nn.functional.pad(chunks.cumsum(0), (1, 0)).to(self._device)
        owner = torch.repeat_interleave(torch.arange(len(parameters)), chunks)
        start = (torch.arange(len(owner)) - (chunks.cumsum(0) - chunks)[owner]) * _CHUNK
        self._places = torch.stack([owner, start, lengths[owner]], dim=1).to(self._device)
        self._partial = torch.zeros(len(owner), 6, dtype=torch.float64, device=self._device)
        self._constants = {
            "KIND": _TYPES[parameters[0].dtype],
            "WIDE": tl.float64 if parameters[0].dtype == torch.float64 else tl.float32,
            "TENSORS": len(parameters),
            "CHUNK": _CHUNK,
        }
        # The addresses on the device, and the copy that is among them.
        self._sent: list[int] = []
        self._copy: Tensors = ()
        self._addresses = torch.empty(0)
        self.epoch(self.copy())  # compiles now; where it cannot, the caller takes another way

    def copy(self, into: list[torch.Tensor] | None = None) -> list[torch.Tensor]:
        into = [torch.empty_like(p) for p in self._parameters] if into is None else into
        torch._foreach_copy_(into, self._parameters)
        return into

    def as_tensors(self, copy: Tensors) -> list[torch.Tensor]:
        return [torch.clone(t) for t in copy]

    def from_tensors(self, values: Tensors) -> list[torch.Tensor]:
        return [torch.empty_like(p).copy_(t) for t, p in zip(values, self._parameters, strict=True)]

    def before(self, into: list[torch.Tensor] | None, gradients: Optional, buffers: Optional) -> list[torch.Tensor]:
        into = [torch.empty_like(p) for p in self._parameters] if into is None else into
        gradients, buffers = self._alike(gradients), self._alike(buffers or self._none)
        self._send(gradients, buffers, into)
        with torch.cuda.device(self._device):
            _before[(len(self._places),)](self._addresses, self._places, self._partial, **self._constants)
        return into

    def step(self, copy: Tensors) -> torch.Tensor:
        return self._change(copy, epoch=False)

    def epoch(self, copy: Tensors) -> torch.Tensor:
        return self._change(copy, epoch=True)[[0, 2, 5]]

    def _change(self, copy: Tensors, *, epoch: bool) -> torch.Tensor:
        tensors = len(self._parameters)
        weights = [p.data_ptr() for p in self._parameters]
        if copy is not self._copy or self._sent[:tensors] != weights:
            self._send(self._none, self._none, copy)
        with torch.cuda.device(self._device):
            _after[(len(self._places),)](self._addresses, self._places, self._partial, EPOCH=epoch, **self._constants)
        # Always added in the same order, so that a run repeats to the bit; "unsafe" only spares a look at the bounds.
        totals = torch.segment_reduce(self._partial, "sum", offsets=self._bounds, axis=0, unsafe=True)
        return totals.t()

    def _send(self, gradients: Optional, buffers: Optional, copy: Tensors) -> None:
        """Have the addresses on the device; from pinned memory, so that nothing waits."""
        self._copy = copy
        rows = (self._parameters, gradients, buffers, copy)
        now = [0 if t is None else t.data_ptr() for row in rows for t in row]
        if now != self._sent:
            self._sent = now
            pinned = torch.tensor(now, pin_memory=self._device.type == "cuda")
            self._addresses = pinned.to(self._device, non_blocking=True)

    def _alike(self, tensors: Optional) -> Optional:
        """The tensors in the types and layouts of the parameters, as they nearly always are."""
        given = [t for t in tensors if t is not None]
        # With some missing the lists differ in length, and the others are copied.
        if [t.dtype for t in given] == self._types and [t.stride() for t in given] == self._strides:
            return tensors
        return [
            None if t is None else torch.empty_like(p).copy_(t) for t, p in zip(tensors, self._parameters, strict=True)
        ]


def fits(parameters: Tensors) -> bool:
    """Whether the kernels know each parameter's type and its elements fill one stretch of memory, in whatever order."""
    return all(p.dtype in _TYPES and _dense(p) for p in parameters)


def _dense(tensor: torch.Tensor) -> bool:
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride != expected:
                return False
            expected *= size
    return True
