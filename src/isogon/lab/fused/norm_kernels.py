"""The kernels of `norm`: two of each direction, the first adding up parts of the rows, the second making the result.

Each walks over its rows in tiles. To load a tile before work on the last one is done was tried, and was slower: on an
H200 the norms of a ResNet-18 took 1,014 µs a step instead of 666.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def add_up_forward(x, parts, rows, columns, groups, PARTS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
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
def normalise(
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
def add_up_backward(
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
def gradient(
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
