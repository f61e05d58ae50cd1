"""Ghost batch norm with ReLU and the residual sum, forward and backward, in two kernels each way.

    y = max(0, γ x̂ + β + r),   x̂ = (x − mean) / √(var + ε),

mean and variance over the rows of a ghost batch; r and max are optional. An activation of N×C×H×W in channels-last
layout is a matrix of N·H·W rows and C columns, a ghost batch a stretch of its rows. The first kernel of each direction
leaves sums (or means) of parts of the rows, the second one joins them and makes the result, so that every element is
read twice and written once, and the order of additions is fixed. The ordinary operations are
`nets.norms.GhostBatchNorm2d` (or `nn.BatchNorm2d`, one ghost batch), a sum, and `torch.relu`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

# Elements and warps of a tile, and programs of a launch. Half of a large GPU's multiprocessors are enough to keep its
# memory busy, and leave the others to the convolutions of other lanes; alone, a lane would be faster with all of them.
_TILE, _WARPS, _PROGRAMS = 16384, 8, 66
# Parts of which a program of the second kernel adds the sums.
_MOST_PARTS = 64


@triton.jit
def _add_up_forward(x, parts, rows, columns, groups, PARTS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The mean m of a part and Σ(x − m)², added up relative to the mean of its first rows, so that nothing cancels."""
    part, group = tl.program_id(0), tl.program_id(1)
    channel = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    here = channel < columns
    start = group * rows
    near = tl.zeros((COLUMNS,), tl.float32)
    first = tl.zeros((COLUMNS,), tl.float32)
    second = tl.zeros((COLUMNS,), tl.float32)
    count = 0
    for row in range(part * ROWS, rows, PARTS * ROWS):
        row_here = row + tl.arange(0, ROWS)
        mask = (row_here < rows)[:, None] & here[None, :]
        value = tl.load(x + (start + row_here)[:, None] * columns + channel[None, :], mask=mask, other=0.0)
        value = value.to(tl.float32)
        if count == 0:
            near = tl.sum(value, 0) / tl.minimum(ROWS, rows - row)
        value = tl.where(mask, value - near[None, :], 0.0)
        first += tl.sum(value, 0)
        second += tl.sum(value * value, 0)
        count += tl.minimum(ROWS, rows - row)
    place = (group * PARTS + part) * columns + channel
    tl.store(parts + place, near + first / count, mask=here)
    tl.store(parts + groups * PARTS * columns + place, second - first * (first / count), mask=here)


@triton.jit
def _statistics(parts, group, groups, rows, columns, channel, here, PARTS: tl.constexpr, ROWS: tl.constexpr):
    """Mean and variance of a ghost batch from those of its parts (Chan et al. 1979)."""
    part = tl.arange(0, PARTS)
    tiles = (rows + ROWS - 1) // ROWS
    count = (tiles - part + PARTS - 1) // PARTS * ROWS
    count = (count - tl.where(part == (tiles - 1) % PARTS, tiles * ROWS - rows, 0)).to(tl.float32)[:, None]
    places = (group * PARTS + part)[:, None] * columns + channel[None, :]
    means = tl.load(parts + places, mask=here[None, :], other=0.0)
    squares = tl.load(parts + groups * PARTS * columns + places, mask=here[None, :], other=0.0)
    mean = tl.sum(count * means, 0) / rows
    off = means - mean[None, :]
    return mean, tl.sum(squares + count * off * off, 0) / rows


@triton.jit
def _thinned(row, rows_before, height, width, STRIDE: tl.constexpr):
    """Of each row of pixels of the batch: its place among the pixels at multiples of STRIDE, and whether it is one."""
    pixel = rows_before + row
    down, across = (pixel // width) % height, pixel % width
    image = pixel // (width * height)
    thin_height, thin_width = (height + STRIDE - 1) // STRIDE, (width + STRIDE - 1) // STRIDE
    place = (image * thin_height + down // STRIDE) * thin_width + across // STRIDE
    return place, (down % STRIDE == 0) & (across % STRIDE == 0)


@triton.jit
def _normalise(
    x,
    residual,
    gamma,
    beta,
    y,
    thin_y,
    parts,
    kept,
    running_mean,
    running_var,
    rows,
    columns,
    groups,
    height,
    width,
    eps,
    momentum,
    PARTS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    AFFINE: tl.constexpr,
    RESIDUAL: tl.constexpr,
    RELU: tl.constexpr,
    TRACK: tl.constexpr,
    STRIDE: tl.constexpr,
):
    """y, and the pixels at multiples of STRIDE once more.

    `kept` gets the mean and 1/√(var + ε) of each ghost batch; the running statistics decay once for each.
    """
    part, group = tl.program_id(0), tl.program_id(1)
    channel = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    here = channel < columns
    if part == tl.num_programs(0) - 1:
        # A program beside those of the rows, which would else wait for it.
        if TRACK:  # noqa: SIM102 - known when the kernel is compiled, unlike the other
            if group == 0:
                tracked_mean = tl.load(running_mean + channel, mask=here, other=0.0)
                tracked_var = tl.load(running_var + channel, mask=here, other=0.0)
                for one in range(groups):
                    its_mean, its_var = _statistics(parts, one, groups, rows, columns, channel, here, PARTS, ROWS)
                    tracked_mean += momentum * (its_mean - tracked_mean)
                    tracked_var += momentum * (its_var * (rows / (rows - 1.0)) - tracked_var)
                tl.store(running_mean + channel, tracked_mean, mask=here)
                tl.store(running_var + channel, tracked_var, mask=here)
        return
    mean, var = _statistics(parts, group, groups, rows, columns, channel, here, PARTS, ROWS)
    # A variance that has overflowed would make all zeros, and a run that has diverged look sound.
    scale = tl.where(var < float("inf"), 1 / tl.sqrt(var + eps), float("nan"))
    if part == 0:
        tl.store(kept + group * columns + channel, mean, mask=here)
        tl.store(kept + (groups + group) * columns + channel, scale, mask=here)
    if AFFINE:
        weight = tl.load(gamma + channel, mask=here, other=0.0).to(tl.float32)[None, :]
        bias = tl.load(beta + channel, mask=here, other=0.0).to(tl.float32)[None, :]
    start = group * rows
    for row in range(part * ROWS, rows, (tl.num_programs(0) - 1) * ROWS):
        row_here = row + tl.arange(0, ROWS)
        mask = (row_here < rows)[:, None] & here[None, :]
        places = (start + row_here)[:, None] * columns + channel[None, :]
        # To the letter as in the backward pass, so that both see the same ReLU.
        value = (tl.load(x + places, mask=mask, other=0.0).to(tl.float32) - mean[None, :]) * scale[None, :]
        if AFFINE:
            value = value * weight + bias
        if RESIDUAL:
            value += tl.load(residual + places, mask=mask, other=0.0).to(tl.float32)
        if RELU:
            value = tl.maximum(value, 0.0, propagate_nan=tl.PropagateNan.ALL)
        tl.store(y + places, value.to(y.dtype.element_ty), mask=mask)
        if STRIDE > 1:
            thin_row, is_one = _thinned(row_here, start, height, width, STRIDE)
            thin_places = thin_row[:, None] * columns + channel[None, :]
            tl.store(thin_y + thin_places, value.to(y.dtype.element_ty), mask=mask & is_one[:, None])


@triton.jit
def _add_up_backward(
    dy,
    more_dy,
    x,
    y,
    gamma,
    beta,
    kept,
    through,
    parts,
    rows,
    columns,
    groups,
    height,
    width,
    PARTS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    AFFINE: tl.constexpr,
    FORKED: tl.constexpr,
    STRIDE: tl.constexpr,
    RESIDUAL: tl.constexpr,
    RELU: tl.constexpr,
):
    """Σg and Σg x̂ of a part, g being dy (or the sum of two) where the ReLU let it through; `through` keeps g."""
    part, group = tl.program_id(0), tl.program_id(1)
    channel = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    here = channel < columns
    mean = tl.load(kept + group * columns + channel, mask=here, other=0.0)[None, :]
    scale = tl.load(kept + (groups + group) * columns + channel, mask=here, other=0.0)[None, :]
    if AFFINE:
        weight = tl.load(gamma + channel, mask=here, other=0.0).to(tl.float32)[None, :]
        bias = tl.load(beta + channel, mask=here, other=0.0).to(tl.float32)[None, :]
    start = group * rows
    first = tl.zeros((COLUMNS,), tl.float32)
    second = tl.zeros((COLUMNS,), tl.float32)
    for row in range(part * ROWS, rows, PARTS * ROWS):
        row_here = row + tl.arange(0, ROWS)
        mask = (row_here < rows)[:, None] & here[None, :]
        places = (start + row_here)[:, None] * columns + channel[None, :]
        g = tl.load(dy + places, mask=mask, other=0.0).to(tl.float32)
        if FORKED:
            if STRIDE > 1:
                thin_row, is_one = _thinned(row_here, start, height, width, STRIDE)
                thin_places = thin_row[:, None] * columns + channel[None, :]
                g += tl.load(more_dy + thin_places, mask=mask & is_one[:, None], other=0.0).to(tl.float32)
            else:
                g += tl.load(more_dy + places, mask=mask, other=0.0).to(tl.float32)
        hat = (tl.load(x + places, mask=mask, other=0.0).to(tl.float32) - mean) * scale
        if RELU:
            if RESIDUAL:
                out = tl.load(y + places, mask=mask, other=0.0).to(tl.float32)
            elif AFFINE:
                out = hat * weight + bias
            else:
                out = hat
            g = tl.where(out > 0, g, 0.0)
        if FORKED or RESIDUAL:
            tl.store(through + places, g.to(through.dtype.element_ty), mask=mask)
        first += tl.sum(g, 0)
        second += tl.sum(g * hat, 0)
    place = (group * PARTS + part) * columns + channel
    tl.store(parts + place, first, mask=here)
    tl.store(parts + groups * PARTS * columns + place, second, mask=here)


@triton.jit
def _sums_of_parts(parts, group, groups, columns, channel, here, PARTS: tl.constexpr):
    """The two sums of a ghost batch from those of its parts."""
    places = (group * PARTS + tl.arange(0, PARTS))[:, None] * columns + channel[None, :]
    first = tl.load(parts + places, mask=here[None, :], other=0.0)
    second = tl.load(parts + groups * PARTS * columns + places, mask=here[None, :], other=0.0)
    return tl.sum(first, 0), tl.sum(second, 0)


@triton.jit
def _gradient(
    g,
    x,
    gamma,
    beta,
    kept,
    parts,
    dx,
    dgamma,
    dbeta,
    rows,
    columns,
    groups,
    PARTS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    AFFINE: tl.constexpr,
    MASK: tl.constexpr,
):
    """dx = γ / √(var + ε) · (g − mean(g) − x̂ mean(g x̂)), and the sums over all rows that are γ's and β's gradients."""
    part, group = tl.program_id(0), tl.program_id(1)
    channel = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    here = channel < columns
    if part == tl.num_programs(0) - 1:
        if AFFINE:  # noqa: SIM102
            if group == 0:
                all_first = tl.zeros((COLUMNS,), tl.float32)
                all_second = tl.zeros((COLUMNS,), tl.float32)
                for one in range(groups):
                    its_first, its_second = _sums_of_parts(parts, one, groups, columns, channel, here, PARTS)
                    all_first += its_first
                    all_second += its_second
                tl.store(dbeta + channel, all_first.to(dbeta.dtype.element_ty), mask=here)
                tl.store(dgamma + channel, all_second.to(dgamma.dtype.element_ty), mask=here)
        return
    first, second = _sums_of_parts(parts, group, groups, columns, channel, here, PARTS)
    mean = tl.load(kept + group * columns + channel, mask=here, other=0.0)[None, :]
    scale = tl.load(kept + (groups + group) * columns + channel, mask=here, other=0.0)[None, :]
    mean_first, mean_second = (first / rows)[None, :], (second / rows)[None, :]
    factor = scale
    if AFFINE:
        weight = tl.load(gamma + channel, mask=here, other=0.0).to(tl.float32)[None, :]
        bias = tl.load(beta + channel, mask=here, other=0.0).to(tl.float32)[None, :]
        factor = scale * weight
    start = group * rows
    for row in range(part * ROWS, rows, (tl.num_programs(0) - 1) * ROWS):
        row_here = row + tl.arange(0, ROWS)
        mask = (row_here < rows)[:, None] & here[None, :]
        places = (start + row_here)[:, None] * columns + channel[None, :]
        hat = (tl.load(x + places, mask=mask, other=0.0).to(tl.float32) - mean) * scale
        value = tl.load(g + places, mask=mask, other=0.0).to(tl.float32)
        if MASK:
            out = hat
            if AFFINE:
                out = hat * weight + bias
            value = tl.where(out > 0, value, 0.0)
        value = factor * (value - mean_first - hat * mean_second)
        tl.store(dx + places, value.to(dx.dtype.element_ty), mask=mask)


class Norm(NamedTuple):
    """What a norm layer is made of, apart from its input; `gamma` and `running_mean` may be None."""

    gamma: torch.Tensor | None
    beta: torch.Tensor | None
    running_mean: torch.Tensor | None
    running_var: torch.Tensor | None
    momentum: float
    eps: float


def fused_norm(
    x: torch.Tensor, norm: Norm, groups: int, *, residual: torch.Tensor | None = None, relu: bool = False
) -> torch.Tensor:
    """The norm of `x` (N×C×H×W in channels-last layout, or N×C) in `groups` ghost batches of equal size."""
    y: torch.Tensor = _FusedNorm.apply(x, norm.gamma, norm.beta, residual, norm, groups, relu, 0)[0]  # type: ignore[no-untyped-call]
    return y


def forked_norm(
    x: torch.Tensor,
    norm: Norm,
    groups: int,
    *,
    residual: torch.Tensor | None = None,
    relu: bool = False,
    stride: int = 1,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`fused_norm` y for two users, the second of whom needs but y[:, :, ::stride, ::stride].

    The sum of the gradients that come back is made on the way.
    """
    return _FusedNorm.apply(x, norm.gamma, norm.beta, residual, norm, groups, relu, stride)  # type: ignore[no-any-return,no-untyped-call]


class _Shape(NamedTuple):
    """The matrix of an activation: `groups` ghost batches of `rows` rows."""

    rows: int
    columns: int
    groups: int

    @classmethod
    def of(cls, x: torch.Tensor, groups: int) -> _Shape:
        return cls(x.numel() // x.shape[1] // groups, x.shape[1], groups)

    @property
    def _tile(self) -> tuple[int, int]:
        columns = min(64, triton.next_power_of_2(self.columns))
        return min(_TILE // columns, triton.next_power_of_2(self.rows)), columns

    def writing(self) -> tuple[int, int, int]:
        """The programs of the second kernels: parts of the rows and one without, ghost batches, blocks of columns."""
        rows, columns = self._tile
        blocks = -(-self.columns // columns)
        parts = max(1, min(_PROGRAMS // (self.groups * blocks), -(-self.rows // rows)))
        return parts + 1, self.groups, blocks

    def reading(self) -> tuple[tuple[int, int, int], dict[str, int]]:
        """The programs of the first kernels, and how all cut; their parts are a power of two, as the second need it."""
        rows, columns = self._tile
        parts, groups, blocks = self.writing()
        constants = {"ROWS": rows, "COLUMNS": columns, "num_warps": max(1, min(_WARPS, rows * columns // 256))}
        return (1 << (min(parts - 1, _MOST_PARTS).bit_length() - 1), groups, blocks), constants


class _FusedNorm(torch.autograd.Function):
    """`stride` is 0 for one user of the output, else that of the second one."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        gamma: torch.Tensor | None,
        beta: torch.Tensor | None,
        residual: torch.Tensor | None,
        norm: Norm,
        groups: int,
        relu: bool,
        stride: int,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        x = _rows_first(x)
        residual = None if residual is None else _rows_first(residual)
        shape = _Shape.of(x, groups)
        kept = x.new_empty(2, groups, shape.columns, dtype=torch.float32)
        y = torch.empty_like(x)
        thin = torch.empty_like(x[:, :, ::stride, ::stride]) if stride > 1 else y
        given = (x, x if residual is None else residual, x if gamma is None else gamma, x if beta is None else beta, y)
        tracked = [kept if running is None else running for running in (norm.running_mean, norm.running_var)]
        kinds = {
            "AFFINE": gamma is not None,
            "RESIDUAL": residual is not None,
            "RELU": relu,
            "TRACK": norm.running_mean is not None,
        }
        grid, cut = shape.reading()
        parts = x.new_empty(2, groups, grid[0], shape.columns, dtype=torch.float32)
        _add_up_forward[grid](x, parts, *shape, PARTS=grid[0], **cut)
        numbers = (*shape, *_sides(x), norm.eps, norm.momentum)
        _normalise[shape.writing()](
            *given, thin, parts, kept, *tracked, *numbers, PARTS=grid[0], STRIDE=max(1, stride), **kinds, **cut
        )
        ctx.shape, ctx.relu, ctx.residual, ctx.stride = shape, relu, residual is not None, stride
        ctx.save_for_backward(x, gamma, beta, y if relu and residual is not None else None, kept)
        ctx.set_materialize_grads(False)
        if stride == 0:
            return y, None
        return y, thin if stride > 1 else y.view_as(y)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        x, gamma, beta, y, kept = ctx.saved_tensors
        shape, affine, stride = ctx.shape, gamma is not None, max(1, ctx.stride)
        dy, more = (None if gradient is None else _rows_first(gradient) for gradient in gradients)
        if dy is None:
            dy = torch.zeros_like(x)
        masked = ctx.residual and ctx.relu
        # What came through the ReLU is the residual's gradient, and so is the sum of two gradients.
        through = torch.empty_like(dy) if masked or more is not None else dy
        dx = torch.empty_like(x)
        dgamma, dbeta = (torch.empty_like(gamma), torch.empty_like(beta)) if affine else (None, None)
        weights = (gamma, beta) if affine else (x, x)
        slopes = (dgamma, dbeta) if affine else (kept, kept)
        given = (dy, dy if more is None else more, x, x if y is None else y, *weights, kept, through)
        kinds = {"AFFINE": affine, "FORKED": more is not None, "RESIDUAL": masked, "RELU": ctx.relu}
        grid, cut = shape.reading()
        parts = x.new_empty(2, shape.groups, grid[0], shape.columns, dtype=torch.float32)
        _add_up_backward[grid](*given, parts, *shape, *_sides(x), PARTS=grid[0], STRIDE=stride, **kinds, **cut)
        given = (through, x, *weights, kept, parts, dx, *slopes)
        mask = ctx.relu and through is dy
        _gradient[shape.writing()](*given, *shape, PARTS=grid[0], AFFINE=affine, MASK=mask, **cut)
        return dx, dgamma, dbeta, through if ctx.residual else None, None, None, None, None


def _sides(x: torch.Tensor) -> tuple[int, int]:
    """Height and width; features have none."""
    return (x.shape[2], x.shape[3]) if x.dim() == 4 else (1, 1)


def _rows_first(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x.contiguous()
