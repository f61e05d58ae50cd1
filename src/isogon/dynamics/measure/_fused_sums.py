"""The sums of `Sums` on a CUDA device, by one Triton kernel before a step and one after it.

An eager training step of a small network is bound by the launching of kernels, so a monitor that measures every step
should launch few: here each number is read once on either side of the step. Addresses travel in a table. Gradients lie
somewhere else as soon as `zero_grad` has let them go, so they are copied first, in one call, to where the weights are
about to be kept, which spares the host looking up and sending sixty addresses. The chunks' sums meet in float64 in
whatever order they come, so that two runs may differ in their last bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import is_
from typing import Any

import torch
import triton
import triton.language as tl

from isogon.dynamics.measure._sum_names import EPOCH_ROWS, StepSum
from isogon.dynamics.measure._sums import ListCopies, Optional, Tensors, chunk_places

# Elements that one program adds up, and its warps: few for a thread, so that registers leave room for several programs
# on a multiprocessor, one of which waits for memory while another adds.
_CHUNK, _WARPS = 1024, 4
_TYPES = {torch.float64: tl.float64, torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
# Measurements for which zeros are made at once.
_ZEROS = 32
# Rows of the sums, as constants that Triton compiles in.
_WEIGHT_SQ, _GRAD_SQ = tl.constexpr(int(StepSum.WEIGHT_SQ)), tl.constexpr(int(StepSum.GRAD_SQ))
_WEIGHT_DOT_GRAD = tl.constexpr(int(StepSum.WEIGHT_DOT_GRAD))
_BUFFER_DOT_GRAD = tl.constexpr(int(StepSum.BUFFER_DOT_GRAD))
_CHANGE_SQ, _CHANGE_DOT_AFTER = tl.constexpr(int(StepSum.CHANGE_SQ)), tl.constexpr(int(StepSum.CHANGE_DOT_AFTER))

# A table of addresses has three rows: weights, momentum buffers, copy. `places` has for each chunk its tensor, where in
# that it starts, and the tensor's length.


@triton.jit
def _values(address, offsets, length, KIND: tl.constexpr):
    """Numbers of a tensor; an address of 0 stands for zeros."""
    end = tl.where(address != 0, length, 0)
    return tl.load(address.to(tl.pointer_type(KIND)) + offsets, mask=offsets < end, other=0.0)


@triton.jit
def _before(
    addresses,
    places,
    out,
    KIND: tl.constexpr,
    WIDE: tl.constexpr,
    TENSORS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Of one chunk, add w², g², wg and vg to their rows of `out`, and put the weights w in g's place."""
    chunk = tl.program_id(0)
    tensor = tl.load(places + 3 * chunk)
    offsets = tl.load(places + 3 * chunk + 1) + tl.arange(0, CHUNK)
    length = tl.load(places + 3 * chunk + 2)
    weight = _values(tl.load(addresses + tensor), offsets, length, KIND)
    copy = tl.load(addresses + 2 * TENSORS + tensor)
    g = _values(copy, offsets, length, KIND).to(WIDE)
    v = _values(tl.load(addresses + TENSORS + tensor), offsets, length, KIND).to(WIDE)
    tl.store(copy.to(tl.pointer_type(KIND)) + offsets, weight, mask=offsets < length)
    w = weight.to(WIDE)
    tl.atomic_add(out + _WEIGHT_SQ * TENSORS + tensor, tl.sum(w * w, 0).to(tl.float64))
    tl.atomic_add(out + _GRAD_SQ * TENSORS + tensor, tl.sum(g * g, 0).to(tl.float64))
    tl.atomic_add(out + _WEIGHT_DOT_GRAD * TENSORS + tensor, tl.sum(w * g, 0).to(tl.float64))
    tl.atomic_add(out + _BUFFER_DOT_GRAD * TENSORS + tensor, tl.sum(v * g, 0).to(tl.float64))


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
    """Of one chunk, a the copy and b the weights, add (a − b)² and (a − b)b to their rows, at EPOCH b² to a²'s."""
    chunk = tl.program_id(0)
    tensor = tl.load(places + 3 * chunk)
    offsets = tl.load(places + 3 * chunk + 1) + tl.arange(0, CHUNK)
    length = tl.load(places + 3 * chunk + 2)
    b = _values(tl.load(addresses + tensor), offsets, length, KIND).to(WIDE)
    change = _values(tl.load(addresses + 2 * TENSORS + tensor), offsets, length, KIND).to(WIDE) - b
    tl.atomic_add(out + _CHANGE_SQ * TENSORS + tensor, tl.sum(change * change, 0).to(tl.float64))
    tl.atomic_add(out + _CHANGE_DOT_AFTER * TENSORS + tensor, tl.sum(change * b, 0).to(tl.float64))
    if EPOCH:
        tl.atomic_add(out + _WEIGHT_SQ * TENSORS + tensor, tl.sum(b * b, 0).to(tl.float64))


#: a copy of the weights, the sums of the step under way, and the addresses of weights and copy
Before = tuple[list[torch.Tensor], torch.Tensor, torch.Tensor]


class _Launch:
    """A kernel whose grid and constants are fixed.

    Triton looks at every argument of every call to find the compiled kernel, and asks the driver where each tensor is,
    which takes longer than launching it. The arguments here are always of the same types and alignments, so from the
    second call on it is launched as it is, with their addresses.
    """

    def __init__(self, kernel: Any, programs: int, constants: dict[str, Any]) -> None:
        self._kernel, self._grid, self._constants = kernel, (programs, 1, 1), constants
        self._values = tuple(constants.values())
        self._compiled: Callable[..., None] | None = None

    def __call__(self, *tensors: torch.Tensor) -> None:
        if self._compiled is not None:
            self._compiled(*map(torch.Tensor.data_ptr, tensors), *self._values)
            return
        compiled = self._kernel[self._grid](*tensors, **self._constants, num_warps=_WARPS)
        self._compiled = None if compiled is None else compiled[self._grid]


class FusedSums(ListCopies):
    """For CUDA. The parameters must be dense.

    Everything done once per tensor and step counts here: sixty tensors are usual, and Python takes longer for them than
    the GPU.
    """

    def __init__(self, parameters: Tensors) -> None:
        super().__init__(parameters)
        self._device = parameters[0].device
        self._none: list[torch.Tensor | None] = [None] * len(parameters)
        self._places = chunk_places(parameters, _CHUNK)
        constants = {
            "KIND": _TYPES[parameters[0].dtype],
            "WIDE": tl.float64 if parameters[0].dtype == torch.float64 else tl.float32,
            "TENSORS": len(parameters),
            "CHUNK": _CHUNK,
        }
        self._sum_before = _Launch(_before, len(self._places), constants)
        self._sum_step = _Launch(_after, len(self._places), {**constants, "EPOCH": False})
        self._sum_epoch = _Launch(_after, len(self._places), {**constants, "EPOCH": True})
        self._zeros: list[torch.Tensor] = []
        # The last table of addresses, and what it was made of: usually that of the next time too.
        self._weights: list[int] = []
        self._buffers: Optional = []
        self._copy: Tensors = []
        self._addresses = torch.empty(0)
        # Buffers in another layout, whose memory must stay theirs until the kernel is launched.
        self._held: Optional = []
        self.epoch(self.copy())  # compiles now; where it cannot, the caller takes another way

    def before(self, into: Before | None, gradients: Optional, buffers: Optional) -> Before:
        copy = [torch.empty_like(p) for p in self._parameters] if into is None else into[0]
        sums, addresses = self._sums(), self._table(buffers or self._none, copy)
        _copy_or_zero(copy, gradients)
        self._launch(self._sum_before, addresses, self._places, sums)
        return copy, sums, addresses

    def step(self, before: Before) -> torch.Tensor:
        copy, sums, addresses = before
        # Some optimizers put new tensors in the place of the weights.
        if _pointers(self._parameters) != self._weights:
            addresses = self._table(self._none, copy)
        self._launch(self._sum_step, addresses, self._places, sums)
        return sums

    def epoch(self, copy: Tensors) -> torch.Tensor:
        sums = self._sums()
        self._launch(self._sum_epoch, self._table(self._none, copy), self._places, sums)
        return sums[list(EPOCH_ROWS)]

    def _launch(self, kernel: _Launch, *tensors: torch.Tensor) -> None:
        if torch.cuda.current_device() == self._device.index:
            kernel(*tensors)
        else:
            with torch.cuda.device(self._device):
                kernel(*tensors)

    def _sums(self) -> torch.Tensor:
        """Zeros for one measurement."""
        if not self._zeros:
            block = torch.zeros(_ZEROS, len(StepSum), len(self._parameters), dtype=torch.float64, device=self._device)
            self._zeros = list(block.unbind())
        return self._zeros.pop()

    def _table(self, buffers: Optional, copy: Tensors) -> torch.Tensor:
        """The addresses of weights, buffers and copy on the device."""
        weights = _pointers(self._parameters)
        if weights == self._weights and copy is self._copy and all(map(is_, buffers, self._buffers)):
            return self._addresses
        matching = self._held = self._match_layouts(buffers)
        table = self._send([*weights, *_pointers(matching), *_pointers(copy)])
        if matching is buffers:
            self._weights, self._buffers, self._copy, self._addresses = weights, list(buffers), copy, table
        return table

    def _send(self, addresses: list[int]) -> torch.Tensor:
        """Copy the addresses to the device, from pinned memory, so that nothing waits."""
        pinned = torch.empty(len(addresses), dtype=torch.int64, pin_memory=self._device.type == "cuda")
        pinned.numpy()[:] = addresses
        return pinned.to(self._device, non_blocking=True)

    def _match_layouts(self, tensors: Optional) -> Optional:
        """The tensors in the types and layouts of the parameters, as they nearly always are."""
        pairs = list(zip(tensors, self._parameters, strict=True))
        if all(t is None or _same_layout(t, p) for t, p in pairs):
            return tensors
        return [None if t is None else torch.empty_like(p).copy_(t) for t, p in pairs]


def _pointers(tensors: Sequence[torch.Tensor | None]) -> list[int]:
    """Addresses; 0 for no tensor."""
    try:
        return [*map(torch.Tensor.data_ptr, tensors)]  # type: ignore[arg-type]
    except TypeError:
        return [0 if t is None else t.data_ptr() for t in tensors]


def _copy_or_zero(to: list[torch.Tensor], tensors: Optional) -> None:
    """Copy, whatever the layouts; what is no tensor counts as zeros."""
    try:
        torch._foreach_copy_(to, tensors)  # type: ignore[arg-type]
    except TypeError:
        torch._foreach_zero_(to)
        targets = [place for place, tensor in zip(to, tensors, strict=True) if tensor is not None]
        if targets:
            torch._foreach_copy_(targets, [tensor for tensor in tensors if tensor is not None])


def _same_layout(tensor: torch.Tensor, parameter: torch.Tensor) -> bool:
    """Whether the same place in memory means the same place in the tensor; the stride of a length of 1 is no matter."""
    strides = zip(tensor.stride(), parameter.stride(), parameter.shape, strict=True)
    same_kind = tensor.dtype == parameter.dtype and tensor.device == parameter.device
    return same_kind and all(mine == theirs or size == 1 for mine, theirs, size in strides)


def fits(parameters: Tensors) -> bool:
    """Whether the kernels know each parameter's type and its elements fill one stretch of memory, in whatever order."""
    return all(p.dtype in _TYPES and _is_dense(p) for p in parameters)


def _is_dense(tensor: torch.Tensor) -> bool:
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride != expected:
                return False
            expected *= size
    return True
