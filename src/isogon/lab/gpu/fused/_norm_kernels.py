"""The kernels of `_norm.py`: two of each direction, the first adds up parts of the rows, the second makes the result.

Each walks over its rows in tiles, and loads a tile before it works on the one before. What is added up stays apart by
thread until the last tile is done: a sum over threads makes all of them wait for each other, and for the memory.
Whole tiles (WHOLE) need no masks.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _read(pointer, places, inside, begin, rows, WHOLE: tl.constexpr):
    """A tile whose first row is `begin`, with zeros for what is not `inside`; nothing is read beyond the last."""
    if WHOLE:
        inside = tl.zeros((1, 1), tl.int32) + begin < rows
    return tl.load(pointer + places, mask=inside, other=0.0)


@triton.jit
def _write(pointer, places, value, inside, WHOLE: tl.constexpr):
    value = value.to(pointer.dtype.element_ty)
    if WHOLE:
        tl.store(pointer + places, value)
    else:
        tl.store(pointer + places, value, mask=inside)


@triton.jit
def _add(value, ROWS: tl.constexpr, COLUMNS: tl.constexpr, ABREAST: tl.constexpr):
    """The sum over a tile's rows that one thread holds."""
    return tl.sum(tl.reshape(value, (ROWS // ABREAST, ABREAST, COLUMNS)), 0)


@triton.jit
def add_up_forward(
    x,
    parts,
    rows,
    columns,
    groups,
    PARTS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    ABREAST: tl.constexpr,
    WHOLE: tl.constexpr,
):
    """The mean m of a part and Σ(x − m)², added up relative to the mean of its first rows, so that nothing cancels."""
    part, group = tl.program_id(0), tl.program_id(1)
    channel = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    here = channel < columns
    step = PARTS * ROWS
    row = part * ROWS + tl.arange(0, ROWS)
    places = (group * rows + row)[:, None] * columns + channel[None, :]
    inside = (row < rows)[:, None] & here[None, :]
    following = _read(x, places, inside, part * ROWS, rows, WHOLE)
    count = tl.minimum(ROWS, rows - part * ROWS)
    near = tl.sum(following.to(tl.float32), 0) / count
    first = tl.zeros((ABREAST, COLUMNS), tl.float32)
    second = tl.zeros((ABREAST, COLUMNS), tl.float32)
    count = 0
    for begin in range(part * ROWS, rows, step):
        now, now_inside = following, inside
        row += step
        places += step * columns
        inside = (row < rows)[:, None] & here[None, :]
        following = _read(x, places, inside, begin + step, rows, WHOLE)
        value = now.to(tl.float32) - near[None, :]
        if not WHOLE:
            value = tl.where(now_inside, value, 0.0)
        first += _add(value, ROWS, COLUMNS, ABREAST)
        second += _add(value * value, ROWS, COLUMNS, ABREAST)
        count += tl.minimum(ROWS, rows - begin)
    place = (group * PARTS + part) * columns + channel
    sum_first = tl.sum(first, 0)
    off = sum_first / count
    tl.store(parts + place, near + off, mask=here)
    tl.store(parts + groups * PARTS * columns + place, tl.sum(second, 0) - sum_first * off, mask=here)


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
def _thin_places(row, rows_before, height, width, STRIDE: tl.constexpr):
    """Of each row of pixels of the batch: its place among the pixels at multiples of STRIDE, and whether it is one."""
    pixel = rows_before + row
    down, across = (pixel // width) % height, pixel % width
    image = pixel // (width * height)
    thin_height, thin_width = (height + STRIDE - 1) // STRIDE, (width + STRIDE - 1) // STRIDE
    place = (image * thin_height + down // STRIDE) * thin_width + across // STRIDE
    return place, (down % STRIDE == 0) & (across % STRIDE == 0)


@triton.jit
def _line(mean, scale, gamma, beta, channel, here, AFFINE: tl.constexpr):
    """a and b for which γ x̂ + β = a x + b; forward and backward pass use the same, and so see the same ReLU."""
    slope = scale
    if AFFINE:
        slope = scale * tl.load(gamma + channel, mask=here, other=0.0).to(tl.float32)
    offset = -mean * slope
    if AFFINE:
        offset += tl.load(beta + channel, mask=here, other=0.0).to(tl.float32)
    return slope[None, :], offset[None, :]


@triton.jit
def normalise(
    x,
    residual,
    gamma,
    beta,
    y,
    thin_y,
    parts,
    moments,
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
    WHOLE: tl.constexpr,
    AFFINE: tl.constexpr,
    RESIDUAL: tl.constexpr,
    RELU: tl.constexpr,
    TRACK: tl.constexpr,
    STRIDE: tl.constexpr,
):
    """y, and the pixels at multiples of STRIDE once more.

    `moments` gets the mean and 1/√(var + ε) of each ghost batch; the running statistics decay once for each.
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
                for ghost in range(groups):
                    its_mean, its_var = _statistics(parts, ghost, groups, rows, columns, channel, here, PARTS, ROWS)
                    tracked_mean += momentum * (its_mean - tracked_mean)
                    tracked_var += momentum * (its_var * (rows / (rows - 1.0)) - tracked_var)
                tl.store(running_mean + channel, tracked_mean, mask=here)
                tl.store(running_var + channel, tracked_var, mask=here)
        return
    start, step = group * rows, (tl.num_programs(0) - 1) * ROWS
    row = part * ROWS + tl.arange(0, ROWS)
    places = (start + row)[:, None] * columns + channel[None, :]
    inside = (row < rows)[:, None] & here[None, :]
    following = _read(x, places, inside, part * ROWS, rows, WHOLE)
    following_residual = _read(residual, places, inside, part * ROWS, rows, WHOLE) if RESIDUAL else following
    mean, var = _statistics(parts, group, groups, rows, columns, channel, here, PARTS, ROWS)
    # A variance that has overflowed would make all zeros, and a run that has diverged look sound.
    scale = tl.where(var < float("inf"), 1 / tl.sqrt(var + eps), float("nan"))
    if part == 0:
        tl.store(moments + group * columns + channel, mean, mask=here)
        tl.store(moments + (groups + group) * columns + channel, scale, mask=here)
    slope, offset = _line(mean, scale, gamma, beta, channel, here, AFFINE)
    for begin in range(part * ROWS, rows, step):
        now, now_residual, now_places, now_inside, now_row = following, following_residual, places, inside, row
        row += step
        places += step * columns
        inside = (row < rows)[:, None] & here[None, :]
        following = _read(x, places, inside, begin + step, rows, WHOLE)
        if RESIDUAL:
            following_residual = _read(residual, places, inside, begin + step, rows, WHOLE)
        value = now.to(tl.float32) * slope + offset
        if RESIDUAL:
            value += now_residual.to(tl.float32)
        if RELU:
            value = tl.maximum(value, 0.0, propagate_nan=tl.PropagateNan.ALL)
        _write(y, now_places, value, now_inside, WHOLE)
        if STRIDE > 1:
            thin_row, is_one = _thin_places(now_row, start, height, width, STRIDE)
            thin_places = thin_row[:, None] * columns + channel[None, :]
            tl.store(thin_y + thin_places, value.to(y.dtype.element_ty), mask=now_inside & is_one[:, None])


@triton.jit
def add_up_backward(
    dy,
    more_dy,
    x,
    y,
    gamma,
    beta,
    moments,
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
    ABREAST: tl.constexpr,
    WHOLE: tl.constexpr,
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
    start, step = group * rows, PARTS * ROWS
    row = part * ROWS + tl.arange(0, ROWS)
    places = (start + row)[:, None] * columns + channel[None, :]
    inside = (row < rows)[:, None] & here[None, :]
    following_dy = _read(dy, places, inside, part * ROWS, rows, WHOLE)
    following_x = _read(x, places, inside, part * ROWS, rows, WHOLE)
    following_y = _read(y, places, inside, part * ROWS, rows, WHOLE) if RELU and RESIDUAL else following_x
    following_more = _read(more_dy, places, inside, part * ROWS, rows, WHOLE) if FORKED and STRIDE == 1 else following_x
    mean = tl.load(moments + group * columns + channel, mask=here, other=0.0)
    scale = tl.load(moments + (groups + group) * columns + channel, mask=here, other=0.0)
    slope, offset = _line(mean, scale, gamma, beta, channel, here, AFFINE)
    below, scale = -(mean * scale)[None, :], scale[None, :]
    first = tl.zeros((ABREAST, COLUMNS), tl.float32)
    second = tl.zeros((ABREAST, COLUMNS), tl.float32)
    for begin in range(part * ROWS, rows, step):
        now_dy, now_x, now_y, now_more = following_dy, following_x, following_y, following_more
        now_places, now_inside, now_row = places, inside, row
        row += step
        places += step * columns
        inside = (row < rows)[:, None] & here[None, :]
        following_dy = _read(dy, places, inside, begin + step, rows, WHOLE)
        following_x = _read(x, places, inside, begin + step, rows, WHOLE)
        if RELU and RESIDUAL:
            following_y = _read(y, places, inside, begin + step, rows, WHOLE)
        if FORKED and STRIDE == 1:
            following_more = _read(more_dy, places, inside, begin + step, rows, WHOLE)
        g = now_dy.to(tl.float32)
        if FORKED:
            if STRIDE > 1:
                thin_row, is_one = _thin_places(now_row, start, height, width, STRIDE)
                thin_places = thin_row[:, None] * columns + channel[None, :]
                g += tl.load(more_dy + thin_places, mask=now_inside & is_one[:, None], other=0.0).to(tl.float32)
            else:
                g += now_more.to(tl.float32)
        hat = now_x.to(tl.float32) * scale + below
        if RELU:
            out = now_y.to(tl.float32) if RESIDUAL else now_x.to(tl.float32) * slope + offset
            g = tl.where(out > 0, g, 0.0)
        if FORKED or RESIDUAL:
            _write(through, now_places, g, now_inside, WHOLE)
        first += _add(g, ROWS, COLUMNS, ABREAST)
        second += _add(g * hat, ROWS, COLUMNS, ABREAST)
    place = (group * PARTS + part) * columns + channel
    tl.store(parts + place, tl.sum(first, 0), mask=here)
    tl.store(parts + groups * PARTS * columns + place, tl.sum(second, 0), mask=here)


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
    moments,
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
    WHOLE: tl.constexpr,
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
                for ghost in range(groups):
                    its_first, its_second = _sums_of_parts(parts, ghost, groups, columns, channel, here, PARTS)
                    all_first += its_first
                    all_second += its_second
                tl.store(dbeta + channel, all_first.to(dbeta.dtype.element_ty), mask=here)
                tl.store(dgamma + channel, all_second.to(dgamma.dtype.element_ty), mask=here)
        return
    start, step = group * rows, (tl.num_programs(0) - 1) * ROWS
    row = part * ROWS + tl.arange(0, ROWS)
    places = (start + row)[:, None] * columns + channel[None, :]
    inside = (row < rows)[:, None] & here[None, :]
    following_x = _read(x, places, inside, part * ROWS, rows, WHOLE)
    following_g = _read(g, places, inside, part * ROWS, rows, WHOLE)
    first, second = _sums_of_parts(parts, group, groups, columns, channel, here, PARTS)
    mean = tl.load(moments + group * columns + channel, mask=here, other=0.0)
    scale = tl.load(moments + (groups + group) * columns + channel, mask=here, other=0.0)
    slope, offset = _line(mean, scale, gamma, beta, channel, here, AFFINE)
    # dx = slope g + by_x x + constant
    tilt = second / rows * scale
    by_x, constant = -slope * tilt[None, :], slope * (tilt * mean - first / rows)[None, :]
    for begin in range(part * ROWS, rows, step):
        now_x, now_g, now_places, now_inside = following_x, following_g, places, inside
        row += step
        places += step * columns
        inside = (row < rows)[:, None] & here[None, :]
        following_x = _read(x, places, inside, begin + step, rows, WHOLE)
        following_g = _read(g, places, inside, begin + step, rows, WHOLE)
        this_x, value = now_x.to(tl.float32), now_g.to(tl.float32)
        if MASK:
            value = tl.where(this_x * slope + offset > 0, value, 0.0)
        value = value * slope + (this_x * by_x + constant)
        _write(dx, now_places, value, now_inside, WHOLE)
