"""The sums of `sums.Sums` on a CUDA device, by one Triton kernel before a step and one after it.

An eager training step of a small network is bound by the launching of kernels, so a monitor that measures every step
should launch few: here each number is read once on either side of the step. Addresses travel in a table, because the
gradients may lie somewhere else as soon as `zero_grad` has let them go. The chunks' sums meet in float64 in whatever
order they come, so that two runs may differ in their last bits.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
import triton
import triton.language as tl

from isogon.dynamics.sums import ListCopies, Optional, Tensors

# Elements that one program adds up.
_CHUNK = 4096
_TYPES = {torch.float64: tl.float64, torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
# Tables of addresses kept: sending one takes longer than all the rest.
_MOST_TABLES = 64

# A table of addresses has four rows: weights, gradients, momentum buffers, copy. `places` has for each chunk its
# tensor, where in that it starts, and the tensor's length.


@triton.jit
def _values(address, offsets, length, KIND: tl.constexpr):
    """Numbers of a tensor; an address of 0 stands for zeros."""
    end = tl.where(address != 0, length, 0)
    return tl.load(address.to(tl.pointer_type(KIND)) + offsets, mask=offsets < end, other=0.0)


@triton.jit
def _before(addresses, places, out, KIND: tl.constexpr, WIDE: tl.constexpr, TENSORS: tl.constexpr, CHUNK: tl.constexpr):
    """Of one chunk, copy the weights w, and add w², g², wg and vg to the rows 0, 1, 3, 4 of `out`."""
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
    tl.atomic_add(out + tensor, tl.sum(w * w, 0).to(tl.float64))
    tl.atomic_add(out + TENSORS + tensor, tl.sum(g * g, 0).to(tl.float64))
    tl.atomic_add(out + 3 * TENSORS + tensor, tl.sum(w * g, 0).to(tl.float64))
    tl.atomic_add(out + 4 * TENSORS + tensor, tl.sum(v * g, 0).to(tl.float64))


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
    """Of one chunk, a the copy and b the weights, add (a − b)² and (a − b)b to the rows 2, 5, and at EPOCH b² to 0."""
    chunk = tl.program_id(0)
    tensor = tl.load(places + 3 * chunk)
    offsets = tl.load(places + 3 * chunk + 1) + tl.arange(0, CHUNK)
    length = tl.load(places + 3 * chunk + 2)
    b = _values(tl.load(addresses + tensor), offsets, length, KIND).to(WIDE)
    change = _values(tl.load(addresses + 3 * TENSORS + tensor), offsets, length, KIND).to(WIDE) - b
    tl.atomic_add(out + 2 * TENSORS + tensor, tl.sum(change * change, 0).to(tl.float64))
    tl.atomic_add(out + 5 * TENSORS + tensor, tl.sum(change * b, 0).to(tl.float64))
    if EPOCH:
        tl.atomic_add(out + tensor, tl.sum(b * b, 0).to(tl.float64))


#: a copy of the weights, the sums of the step under way, and the addresses of weights and copy
Before = tuple[list[torch.Tensor], torch.Tensor, torch.Tensor]


class FusedSums(ListCopies):
    """For CUDA. The parameters must be dense.

    Whatever is done once a tensor and step counts here: sixty tensors are usual, and Python takes longer for them than
    the GPU.
    """

    def __init__(self, parameters: Tensors) -> None:
        super().__init__(parameters)
        self._device = parameters[0].device
        self._none: list[torch.Tensor | None] = [None] * len(parameters)
        lengths = torch.tensor([p.numel() for p in parameters])
        chunks = -(-lengths // _CHUNK)
        owner = torch.repeat_interleave(torch.arange(len(parameters)), chunks)
        start = (torch.arange(len(owner)) - (chunks.cumsum(0) - chunks)[owner]) * _CHUNK
        self._places = torch.stack([owner, start, lengths[owner]], dim=1).to(self._device)
        self._grid = (len(owner),)
        self._constants = {
            "KIND": _TYPES[parameters[0].dtype],
            "WIDE": tl.float64 if parameters[0].dtype == torch.float64 else tl.float32,
            "TENSORS": len(parameters),
            "CHUNK": _CHUNK,
        }
        self._weights: list[int] = []
        self._tables: OrderedDict[tuple[int, ...], torch.Tensor] = OrderedDict()
        # Types and strides of gradients that were found to be laid out like the parameters.
        self._good_layouts: list[tuple[list[torch.dtype], list[tuple[int, ...]]]] = []
        self.epoch(self.copy())  # compiles now; where it cannot, the caller takes another way

    def before(self, into: Before | None, gradients: Optional, buffers: Optional) -> Before:
        copy = [torch.empty_like(p) for p in self._parameters] if into is None else into[0]
        gradients, buffers = self._alike(gradients), self._alike(buffers or self._none)
        sums, addresses = self._zeros(), self._addresses(gradients, buffers, copy)
        with torch.cuda.device(self._device):
            _before[self._grid](addresses, self._places, sums, **self._constants)
        return copy, sums, addresses

    def step(self, before: Before) -> torch.Tensor:
        copy, sums, addresses = before
        # Some optimizers put new tensors in the place of the weights.
        if [p.data_ptr() for p in self._parameters] != self._weights:
            addresses = self._addresses(self._none, self._none, copy)
        self._add_change(addresses, sums, epoch=False)
        return sums

    def epoch(self, copy: Tensors) -> torch.Tensor:
        sums = self._zeros()
        self._add_change(self._addresses(self._none, self._none, copy), sums, epoch=True)
        return sums[[0, 2, 5]]

    def _add_change(self, addresses: torch.Tensor, sums: torch.Tensor, *, epoch: bool) -> None:
        with torch.cuda.device(self._device):
            _after[self._grid](addresses, self._places, sums, EPOCH=epoch, **self._constants)

    def _zeros(self) -> torch.Tensor:
        return torch.zeros(6, len(self._parameters), dtype=torch.float64, device=self._device)

    def _addresses(self, gradients: Optional, buffers: Optional, copy: Tensors) -> torch.Tensor:
        """The addresses on the device; the same few come again and again, as memory is given out in the same order."""
        self._weights = [p.data_ptr() for p in self._parameters]
        rest = [0 if t is None else t.data_ptr() for row in (gradients, buffers, copy) for t in row]
        now = (*self._weights, *rest)
        table = self._tables.get(now)
        if table is None:
            while len(self._tables) >= _MOST_TABLES:
                self._tables.popitem(last=False)
            # From pinned memory, so that nothing waits.
            pinned = torch.tensor(now, pin_memory=self._device.type == "cuda")
            table = self._tables[now] = pinned.to(self._device, non_blocking=True)
        return table

    def _alike(self, tensors: Optional) -> Optional:
        """The tensors in the types and layouts of the parameters, as they nearly always are."""
        given = [t for t in tensors if t is not None]
        if not given:
            return tensors
        if len(given) == len(tensors):
            found = [t.dtype for t in given], [t.stride() for t in given]
            if found in self._good_layouts:
                return tensors
            if all(map(_same_layout, given, self._parameters)):
                self._good_layouts.append(found)
                return tensors
        return [
            None if t is None else torch.empty_like(p).copy_(t) for t, p in zip(tensors, self._parameters, strict=True)
        ]


def _same_layout(tensor: torch.Tensor, parameter: torch.Tensor) -> bool:
    """Whether the same place in memory means the same place in the tensor; the stride of a length of 1 is no matter."""
    strides = zip(tensor.stride(), parameter.stride(), parameter.shape, strict=True)
    same_kind = tensor.dtype == parameter.dtype and tensor.device == parameter.device
    return same_kind and all(mine == theirs or size == 1 for mine, theirs, size in strides)


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
