"""The kernels of `_transformer`: sums of branches with the norm that follows, heads, and the functions of MLPs."""

from __future__ import annotations

import triton
import triton.language as tl

_RMS, _LAYER = tl.constexpr(1), tl.constexpr(2)
_RELU2, _GELU = tl.constexpr(0), tl.constexpr(1)


@triton.jit
def add_norm(
    stream,
    branch,
    weight,
    bias,
    new_stream,
    out,
    means,
    scales,
    rows,
    width,
    eps,
    NORM: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """x ← x + branch, out ← norm(x), a tile of rows; `branch`, `weight` and `bias` may be None."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    mask = (row < rows)[:, None] & (column < width)[None, :]
    places = row[:, None] * width + column[None, :]
    x = tl.load(stream + places, mask=mask, other=0.0).to(tl.float32)
    if branch is not None:
        x = x + tl.load(branch + places, mask=mask, other=0.0).to(tl.float32)
        tl.store(new_stream + places, x, mask=mask)
    if NORM == _LAYER:
        mean = tl.sum(x, 1) / width
        tl.store(means + row, mean, mask=row < rows)
        x = tl.where(mask, x - mean[:, None], 0.0)
    scale = 1 / tl.sqrt(tl.sum(x * x, 1) / width + eps)
    tl.store(scales + row, scale, mask=row < rows)
    y = x * scale[:, None]
    if weight is not None:
        y = y * tl.load(weight + column, mask=column < width, other=0.0)[None, :]
    if bias is not None:
        y = y + tl.load(bias + column, mask=column < width, other=0.0)[None, :]
    tl.store(out + places, y.to(out.dtype.element_ty), mask=mask)


@triton.jit
def add_norm_backward(
    stream,
    means,
    scales,
    weight,
    of_out,
    of_stream,
    new_of_stream,
    of_branch,
    of_weight,
    of_bias,
    rows,
    width,
    NORM: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """The gradients; sums over all rows are added to `of_weight` and `of_bias`, which begin as zeros."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    mask = (row < rows)[:, None] & (column < width)[None, :]
    places = row[:, None] * width + column[None, :]
    x = tl.load(stream + places, mask=mask, other=0.0).to(tl.float32)
    slope = tl.load(of_out + places, mask=mask, other=0.0).to(tl.float32)
    scale = tl.load(scales + row, mask=row < rows, other=0.0)
    if NORM == _LAYER:
        x = tl.where(mask, x - tl.load(means + row, mask=row < rows, other=0.0)[:, None], 0.0)
    x = x * scale[:, None]
    if of_weight is not None:
        tl.atomic_add(of_weight + column, tl.sum(slope * x, 0), mask=column < width, sem="relaxed")
    if of_bias is not None:
        tl.atomic_add(of_bias + column, tl.sum(slope, 0), mask=column < width, sem="relaxed")
    if weight is not None:
        slope = slope * tl.load(weight + column, mask=column < width, other=0.0)[None, :]
    slope = slope - x * (tl.sum(slope * x, 1) / width)[:, None]
    if NORM == _LAYER:  # the normalised values sum to 0, so that the order of the two does not matter
        slope = slope - (tl.sum(slope, 1) / width)[:, None]
    slope = slope * scale[:, None]
    if of_stream is not None:
        slope = slope + tl.load(of_stream + places, mask=mask, other=0.0)
    tl.store(new_of_stream + places, slope, mask=mask)
    if of_branch is not None:
        tl.store(of_branch + places, slope.to(of_branch.dtype.element_ty), mask=mask)


@triton.jit
def scatter_rows(slopes, tokens, table, count, width, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Add each row of `slopes` to the row of `table` that its token has."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    mask = (row < count)[:, None] & (column < width)[None, :]
    token = tl.load(tokens + row, mask=row < count, other=0)
    value = tl.load(slopes + row[:, None] * width + column[None, :], mask=mask, other=0.0).to(tl.float32)
    tl.atomic_add(table + token[:, None] * width + column[None, :], value, mask=mask, sem="relaxed")


@triton.jit
def _centred(a, b, mask, width):
    mean = ((tl.sum(a, 1) + tl.sum(b, 1)) / width)[:, None]
    return tl.where(mask, a - mean, 0.0), tl.where(mask, b - mean, 0.0)


@triton.jit
def _normalised(a, b, mask, width, eps, NORM: tl.constexpr):
    """Both halves of each head, normalised together, and by what they were divided."""
    if NORM == _LAYER:
        a, b = _centred(a, b, mask, width)
    scale = 1 / tl.sqrt((tl.sum(a * a, 1) + tl.sum(b * b, 1)) / width + eps)
    return a * scale[:, None], b * scale[:, None], scale


@triton.jit
def heads(
    packed,
    cosines,
    sines,
    out,
    of_out,
    of_packed,
    tokens,
    length,
    count,
    half,
    eps,
    NORM: tl.constexpr,
    BACK: tl.constexpr,
    ROWS: tl.constexpr,
    HALF: tl.constexpr,
):
    """Queries, keys and values (token, which, head, channel) → (which, token, head, channel).

    The first two are normalised (`NORM` 0: not) and turned by their position (`cosines` None: not). With `BACK` the
    gradient goes the other way, and the normalisation is computed again.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    here = row < 3 * tokens * count
    head, which, token = row % count, (row // count) % 3, row // (3 * count)
    channel = tl.arange(0, HALF)
    mask = here[:, None] & (channel < half)[None, :]
    first = row[:, None] * 2 * half + channel[None, :]
    target = ((which * tokens + token) * count + head)[:, None] * 2 * half + channel[None, :]
    values = (which == 2)[:, None]
    a = tl.load(packed + first, mask=mask, other=0.0).to(tl.float32)
    b = tl.load(packed + first + half, mask=mask, other=0.0).to(tl.float32)
    if NORM != 0:
        unit_a, unit_b, scale = _normalised(a, b, mask, 2 * half, eps, NORM)
    if cosines is not None:
        turn = (token % length)[:, None] * half + channel[None, :]
        cosine = tl.load(cosines + turn, mask=mask, other=1.0)
        sine = tl.load(sines + turn, mask=mask, other=0.0)
    if BACK:
        slope_a = tl.load(of_out + target, mask=mask, other=0.0).to(tl.float32)
        slope_b = tl.load(of_out + target + half, mask=mask, other=0.0).to(tl.float32)
        new_a, new_b = slope_a, slope_b
        if cosines is not None:
            new_a, new_b = slope_a * cosine + slope_b * sine, slope_b * cosine - slope_a * sine
        if NORM != 0:
            along = (tl.sum(new_a * unit_a, 1) + tl.sum(new_b * unit_b, 1)) / (2 * half)
            new_a, new_b = new_a - unit_a * along[:, None], new_b - unit_b * along[:, None]
            if NORM == _LAYER:
                new_a, new_b = _centred(new_a, new_b, mask, 2 * half)
            new_a, new_b = new_a * scale[:, None], new_b * scale[:, None]
        kind = of_packed.dtype.element_ty
        tl.store(of_packed + first, tl.where(values, slope_a, new_a).to(kind), mask=mask)
        tl.store(of_packed + first + half, tl.where(values, slope_b, new_b).to(kind), mask=mask)
    else:
        new_a, new_b = a, b
        if NORM != 0:
            new_a, new_b = unit_a, unit_b
        if cosines is not None:
            new_a, new_b = new_a * cosine - new_b * sine, new_b * cosine + new_a * sine
        kind = out.dtype.element_ty
        tl.store(out + target, tl.where(values, a, new_a).to(kind), mask=mask)
        tl.store(out + target + half, tl.where(values, b, new_b).to(kind), mask=mask)


@triton.jit
def activate(x, slopes, out, size, FUNCTION: tl.constexpr, BACK: tl.constexpr, BLOCK: tl.constexpr):
    """relu(x)² or the exact gelu(x), or with `BACK` the gradient of x."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = place < size
    value = tl.load(x + place, mask=mask, other=0.0).to(tl.float32)
    if FUNCTION == _RELU2:
        rectified = tl.maximum(value, 0.0)
        result = 2 * rectified if BACK else rectified * rectified
    else:
        below = 0.5 * (1 + tl.erf(value * 0.7071067811865476))
        result = below + value * 0.3989422804014327 * tl.exp(-0.5 * value * value) if BACK else value * below
    if BACK:
        result = result * tl.load(slopes + place, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + place, result.to(out.dtype.element_ty), mask=mask)


@triton.jit
def swiglu(x, slopes, out, rows, width, BACK: tl.constexpr, BLOCK: tl.constexpr):
    """silu(gate) · up of x (row, gates and then ups), or with `BACK` the gradient of x."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = place < rows * width
    gates = (place // width) * 2 * width + place % width
    gate = tl.load(x + gates, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(x + gates + width, mask=mask, other=0.0).to(tl.float32)
    share = 1 / (1 + tl.exp(-gate))
    kind = out.dtype.element_ty
    if BACK:
        slope = tl.load(slopes + place, mask=mask, other=0.0).to(tl.float32)
        tl.store(out + gates, (slope * up * share * (1 + gate * (1 - share))).to(kind), mask=mask)
        tl.store(out + gates + width, (slope * gate * share).to(kind), mask=mask)
    else:
        tl.store(out + place, (gate * share * up).to(kind), mask=mask)
