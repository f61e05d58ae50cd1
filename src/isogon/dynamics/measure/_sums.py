"""Sums over many tensors at once, made where the tensors are and left there: nothing here waits for the device.

Three ways to the same numbers, all given in float64. On the CPU each tensor is walked in pieces that stay in the cache.
On other devices launching a kernel costs more than running it. Where Triton works, `FusedSums` launches the fewest;
elsewhere the copy of the weights is one flat array, and `torch._foreach_*` turns it, in place, into one product after
another: no memory beyond that copy is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch

from isogon.dynamics.measure._sum_names import EPOCH_ROWS, SQUARES, EpochSum, StepSum

Tensors = Sequence[torch.Tensor]
#: one entry per parameter; None adds nothing
Optional = Sequence[torch.Tensor | None]

# Elements: a few pieces of it in float64 fit a core's cache.
_PIECE = 1 << 16
# Elements of a row of the flat array.
_ROW = 1024


class Sums(Protocol):
    """Sums over some parameters. A copy of their values is whatever `copy` returns."""

    def copy(self, into: Any = None) -> Any:
        """The parameters' values now, in the memory of an earlier copy where one is given."""

    def as_tensors(self, copy: Any) -> list[torch.Tensor]:
        """The values of a copy, shaped like the parameters."""

    def from_tensors(self, values: Tensors) -> Any:
        """The copy that has these values."""

    def before(self, into: Any, gradients: Optional, buffers: Optional) -> Any:
        """Before a step, what `step` needs: a copy of the weights, and sums with the gradient.

        `into` is what an earlier call returned, or None; `buffers` is empty where the optimizer has none.
        """

    def step(self, before: Any) -> torch.Tensor:
        """The rows of `StepSum`: a the weights before, used up, b those after it."""

    def epoch(self, copy: Any) -> torch.Tensor:
        """The rows of `EpochSum`: a the copy, used up, b the parameters now."""


def sums_for(parameters: Tensors) -> Sums:
    """The way that suits the parameters, which are on one device and of one type."""
    kind = parameters[0].device.type
    if kind == "cpu":
        return PiecewiseSums(parameters)
    return (_try_fused(parameters) if kind == "cuda" else None) or FlatSums(parameters)


def _try_fused(parameters: Tensors) -> Sums | None:
    try:
        from isogon.dynamics.measure._fused_sums import FusedSums, fits

        return FusedSums(parameters) if fits(parameters) else None
    except Exception:  # no Triton, no C compiler for its launcher, an unknown card: the numbers are the same, later
        return None


#: a copy of the weights, and ‖w‖², ‖g‖², ⟨w, g⟩, ⟨v, g⟩ of each
Before = tuple[list[torch.Tensor], list[tuple[float, float, float, float]]]


class ListCopies:
    """The part of `Sums` about copies, for which a copy is a list of tensors like the parameters."""

    def __init__(self, parameters: Tensors) -> None:
        self._parameters = list(parameters)

    @torch.no_grad()  # a copy that remembers its weights would keep their place in autograd's graph alive
    def copy(self, into: list[torch.Tensor] | None = None) -> list[torch.Tensor]:
        into = [torch.empty_like(p) for p in self._parameters] if into is None else into
        torch._foreach_copy_(into, self._parameters)
        return into

    def as_tensors(self, copy: Tensors) -> list[torch.Tensor]:
        return [torch.clone(t) for t in copy]

    def from_tensors(self, values: Tensors) -> list[torch.Tensor]:
        return [torch.empty_like(p).copy_(t) for t, p in zip(values, self._parameters, strict=True)]


class PiecewiseSums(ListCopies):
    """For the CPU."""

    def before(self, into: Before | None, gradients: Optional, buffers: Optional) -> Before:
        copy = self.copy(None if into is None else into[0])
        buffers = buffers or [None] * len(gradients)
        return copy, [_gradient_sums(*tensors) for tensors in zip(copy, gradients, buffers, strict=True)]

    def step(self, before: Before) -> torch.Tensor:
        copy, gradient = before
        weight_sq, grad_sq, weight_dot, buffer_dot = zip(*gradient, strict=True)
        change_sq, change_dot = self._change(copy)
        rows = {
            StepSum.WEIGHT_SQ: weight_sq,
            StepSum.GRAD_SQ: grad_sq,
            StepSum.CHANGE_SQ: change_sq,
            StepSum.WEIGHT_DOT_GRAD: weight_dot,
            StepSum.BUFFER_DOT_GRAD: buffer_dot,
            StepSum.CHANGE_DOT_AFTER: change_dot,
        }
        return _table([rows[row] for row in StepSum])

    def epoch(self, copy: Tensors) -> torch.Tensor:
        change_sq, change_dot = self._change(copy)
        rows = {
            EpochSum.WEIGHT_SQ: [sum(_dot(b, b) for (b,) in _pieces(p)) for p in self._parameters],
            EpochSum.CHANGE_SQ: change_sq,
            EpochSum.CHANGE_DOT_AFTER: change_dot,
        }
        return _table([rows[row] for row in EpochSum])

    def _change(self, copy: Tensors) -> tuple[Sequence[float], Sequence[float]]:
        squares, dots = zip(*(_change_sums(a, b) for a, b in zip(copy, self._parameters, strict=True)), strict=True)
        return squares, dots


def _table(rows: Sequence[Sequence[float]]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def _gradient_sums(
    weight: torch.Tensor, gradient: torch.Tensor | None, buffer: torch.Tensor | None
) -> tuple[float, float, float, float]:
    if gradient is None:
        return sum(_dot(w, w) for (w,) in _pieces(weight)), 0.0, 0.0, 0.0
    weight_sq = grad_sq = weight_dot = buffer_dot = 0.0
    for w, g, *v in _pieces(weight, gradient, *([] if buffer is None else [buffer])):
        weight_sq += _dot(w, w)
        grad_sq += _dot(g, g)
        weight_dot += _dot(w, g)
        buffer_dot += _dot(v[0], g) if v else 0.0
    return weight_sq, grad_sq, weight_dot, buffer_dot


def _change_sums(before: torch.Tensor, after: torch.Tensor) -> tuple[float, float]:
    change_sq = change_dot = 0.0
    wide = _wide_type(after)
    for a, b in _pieces(before, after):
        # The difference of close numbers is exact in their own type.
        change = a.to(wide) - b.to(wide)
        change_sq += _dot(change, change)
        change_dot += _dot(change, b)
    return change_sq, change_dot


def _dot(p: torch.Tensor, q: torch.Tensor) -> float:
    # A piece is short enough for float32; the pieces are added in float64.
    dtype = torch.float64 if torch.float64 in (p.dtype, q.dtype) else torch.float32
    return torch.dot(p.to(dtype), q.to(dtype)).item()


def _pieces(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Short stretches of the tensors, all in one order; views where they share a dense layout, channels last too."""
    first = tensors[0]
    if not first.is_contiguous() and all(t.stride() == first.stride() for t in tensors):
        order = sorted(range(first.dim()), key=first.stride, reverse=True)
        tensors = tuple(t.permute(order) for t in tensors)
    flat = tuple(t.reshape(-1) for t in tensors)
    if first.numel() <= _PIECE:
        return iter([flat])
    return zip(*(torch.split(t, _PIECE) for t in flat), strict=True)


class FlatCopy:
    """Values of parameters in one array of rows; each parameter begins a row, and what is left of its last is 0."""

    def __init__(self, parameters: Tensors) -> None:
        rows = [-(-p.numel() // _ROW) for p in parameters]
        self.rows = torch.zeros(sum(rows), _ROW, dtype=_wide_type(parameters[0]), device=parameters[0].device)
        self.views = []
        for parameter, start in zip(parameters, _starts(rows), strict=True):
            # The strides of the parameter, so that channels last is copied like anything else.
            self.views.append(torch.as_strided(self.rows, parameter.shape, parameter.stride(), start * _ROW))


class FlatSums:
    """For accelerators. A copy is a `FlatCopy`, and working space as soon as its values are no longer needed."""

    def __init__(self, parameters: Tensors) -> None:
        self._parameters = list(parameters)
        rows = torch.tensor([-(-p.numel() // _ROW) for p in parameters])
        self._owner = torch.repeat_interleave(torch.arange(len(parameters)), rows).to(parameters[0].device)
        shape = len(StepSum), len(self._owner)
        self._row_sums = torch.zeros(shape, dtype=_wide_type(parameters[0]), device=parameters[0].device)
        self._squares = self._row_sums[: len(SQUARES)]
        self._each = dict(zip(StepSum, self._row_sums, strict=True))

    def copy(self, into: FlatCopy | None = None) -> FlatCopy:
        into = FlatCopy(self._parameters) if into is None else into
        torch._foreach_copy_(into.views, self._parameters)
        return into

    def as_tensors(self, copy: FlatCopy) -> list[torch.Tensor]:
        return [torch.clone(view) for view in copy.views]

    def from_tensors(self, values: Tensors) -> FlatCopy:
        copy = FlatCopy(self._parameters)
        for view, value in zip(copy.views, values, strict=True):
            view.copy_(value)
        return copy

    def before(self, into: FlatCopy | None, gradients: Optional, buffers: Optional) -> FlatCopy:
        buffer_dot = self._each[StepSum.BUFFER_DOT_GRAD]
        dense_gradients = self._fill_missing(gradients)
        copy = self.copy(into)
        _norms(copy, self._each[StepSum.WEIGHT_SQ])
        torch._foreach_mul_(copy.views, dense_gradients)
        _sums(copy, self._each[StepSum.WEIGHT_DOT_GRAD])
        torch._foreach_copy_(copy.views, dense_gradients)
        _norms(copy, self._each[StepSum.GRAD_SQ])
        if buffers:
            torch._foreach_mul_(copy.views, self._fill_missing(buffers))
            _sums(copy, buffer_dot)
        else:
            buffer_dot.zero_()
        return self.copy(copy)

    def step(self, before: FlatCopy) -> torch.Tensor:
        self._change(before)
        self._squares.square_()
        return self._sum_by_tensor(self._row_sums)

    def epoch(self, copy: FlatCopy) -> torch.Tensor:
        self._change(copy)
        _norms(self.copy(copy), self._each[StepSum.WEIGHT_SQ])
        rows = [self._each[row].square() if row in SQUARES else self._each[row] for row in EPOCH_ROWS]
        return self._sum_by_tensor(torch.stack(rows))

    def _change(self, copy: FlatCopy) -> None:
        # The difference of close numbers is exact.
        torch._foreach_sub_(copy.views, self._parameters)
        _norms(copy, self._each[StepSum.CHANGE_SQ])
        torch._foreach_mul_(copy.views, self._parameters)
        _sums(copy, self._each[StepSum.CHANGE_DOT_AFTER])

    def _fill_missing(self, tensors: Optional) -> list[torch.Tensor]:
        return [torch.zeros_like(self._parameters[i]) if t is None else t for i, t in enumerate(tensors)]

    def _sum_by_tensor(self, rows: torch.Tensor) -> torch.Tensor:
        table = rows.double()
        return table.new_zeros(len(rows), len(self._parameters)).index_add_(1, self._owner, table)


def _norms(copy: FlatCopy, out: torch.Tensor) -> None:
    torch.linalg.vector_norm(copy.rows, dim=1, out=out)


def _sums(copy: FlatCopy, out: torch.Tensor) -> None:
    torch.sum(copy.rows, 1, out=out)


def _wide_type(parameter: torch.Tensor) -> torch.dtype:
    """At least float32: products of half-precision numbers would underflow."""
    return torch.promote_types(parameter.dtype, torch.float32)


def _starts(lengths: Sequence[int]) -> Iterator[int]:
    start = 0
    for length in lengths:
        yield start
        start += length


def chunk_places(tensors: Tensors, chunk: int) -> torch.Tensor:
    """For each piece of `chunk` elements: its tensor, where in that it starts, and the tensor's length."""
    lengths = torch.tensor([tensor.numel() for tensor in tensors])
    chunks = -(-lengths // chunk)
    owner = torch.repeat_interleave(torch.arange(len(tensors)), chunks)
    start = (torch.arange(len(owner)) - (chunks.cumsum(0) - chunks)[owner]) * chunk
    return torch.stack([owner, start, lengths[owner]], dim=1).to(tensors[0].device)
