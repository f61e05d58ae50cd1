"""Rules for operations over dimensions or windows: sums, extremes, norms, softmax, sorting, pooling, losses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from isogon.symmetry import _state as st
from isogon.symmetry._operation import Operation
from isogon.symmetry._state import State
from isogon.symmetry.rules._registry import aten, register_rule

SOFTMAX_CURE = "normalise without trainable affine what goes into it, such as queries and keys"


def _dims(dim: Any) -> list[int] | None:
    if dim is None:
        return None
    return [dim] if isinstance(dim, int) else list(dim)


@register_rule("aten.mean", "aten.nanmean")
def mean(op: Operation, self: State, dim: Any = None, keepdim: bool = False, **_: Any) -> State:
    return op.reduce(self, _dims(dim), keepdim, "mean")


@register_rule("aten.sum", "aten.nansum")
def total(op: Operation, self: State, dim: Any = None, keepdim: bool = False, **_: Any) -> State:
    return op.reduce(self, _dims(dim), keepdim)


@register_rule("aten.amax", "aten.amin")
def extreme(op: Operation, self: State, dim: Any = None, keepdim: bool = False) -> State:
    return op.reduce(self, _dims(dim), keepdim, "extreme")


@register_rule("aten.max", "aten.min", "aten.median", "aten.nanmedian", "aten.mode", "aten.kthvalue", "aten.aminmax")
def extreme_and_index(op: Operation, self: State, *args: Any, **named: Any) -> Any:
    if op.short == "kthvalue":
        args = args[1:]
    last = -1 if op.short in ("kthvalue", "mode") else None
    dim = named.get("dim", args[0] if args else last)
    keepdim = named.get("keepdim", args[1] if len(args) > 1 else False)
    value = op.reduce(self, _dims(dim), keepdim, "extreme")
    if len(op.shapes) == 1:
        return value
    return [value, value.with_() if op.short == "aminmax" else _position(op, value)]


def _position(op: Operation, value: State) -> State:
    """Where the extreme is: unchanged as long as what is compared keeps its order."""
    return op.sign(value.with_(shift=np.zeros_like(value.shift))).with_(floating=False)


@register_rule("aten.argmax", "aten.argmin")
def argmax(op: Operation, self: State, dim: int | None = None, keepdim: bool = False) -> State:
    return _position(op, op.reduce(self, _dims(dim), keepdim, "extreme"))


@register_rule("aten.var", "aten.std")
def spread_of(op: Operation, self: State, dim: Any = None, *_: Any, keepdim: bool | None = None, **named: Any) -> State:
    keep = len(op.shape) == self.ndim if keepdim is None else keepdim
    dims = None if isinstance(dim, bool) else _dims(dim)
    return op.deviation(self, dims, keep, 1 if op.short == "std" else 2)


@register_rule("aten.var_mean", "aten.std_mean")
def spread_and_mean(op: Operation, self: State, dim: Any = None, *_: Any, **__: Any) -> list[State]:
    dims = None if isinstance(dim, bool) else _dims(dim)
    keep = len(op.shape) == self.ndim
    return [
        op.deviation(self, dims, keep, 1 if op.short == "std_mean" else 2),
        op.reduce(self, dims, keep, "mean"),
    ]


@register_rule(
    "aten.linalg_vector_norm", "aten.norm", "aten.frobenius_norm", "aten.linalg_norm", "aten.linalg_matrix_norm"
)
def norm(op: Operation, self: State, *args: Any, **named: Any) -> State:
    """‖x‖: d → d, for any order but 0, which counts."""
    frobenius = op.short == "frobenius_norm"
    order = 2 if frobenius else named.get("ord", named.get("p", args[0] if args else 2))
    rest = list(args) if frobenius else list(args[1:])
    dims = named.get("dim", rest[0] if rest else None)
    if op.short == "linalg_matrix_norm" and dims is None:
        dims = [-2, -1]
    x = op.settle(self)
    out = op.reduce(x, _dims(dims), len(op.shape) == self.ndim and self.ndim > 0).plain()
    if order == 0:
        return op.sign(out).with_(nonneg=True)
    return out.with_(nonneg=True)


@register_rule("aten.prod")
def product(op: Operation, self: State, dim: int | None = None, keepdim: bool = False, **_: Any) -> State:
    """A product of n elements of degree d has degree n·d."""
    x = op.settle(self)
    if dim is None:
        count, x = int(np.prod(x.shape)), op.mix(x, "multiplies")
    else:
        count = x.shape[dim]
        x = op.mix(x, "multiplies") if x.runs > 1 and x.dim == dim % x.ndim else x
    return op.power(op.reduce(x, _dims(dim), keepdim), count).plain().with_(nonneg=self.nonneg)


@register_rule("aten.cumsum", "aten.logcumsumexp")
def running_sum(op: Operation, self: State, dim: int, **_: Any) -> State:
    along = 1 << dim % self.ndim if self.ndim else 0
    x = self if op.short == "cumsum" else _sum_exponentials(op, self, along)
    x = op.mix(x, "sums along") if x.runs > 1 and x.dim == dim % x.ndim else x
    out = x.plain().with_(
        varies=x.varies | along & st.nontrivial(x.shape),
        ray=np.where((x.ray & along) != 0, x.varies | along, x.ray),
    )
    return out.extend_shifts(along) if op.short == "cumsum" else out


@register_rule("aten.cumprod")
def running_product(op: Operation, self: State, dim: int, **_: Any) -> State:
    if not self.fixed.all():
        return op.unknown(self)
    return op.require_zero(self).with_(varies=self.varies | 1 << dim % max(self.ndim, 1) & st.nontrivial(self.shape))


@register_rule("aten.cummax", "aten.cummin")
def running_extreme(op: Operation, self: State, dim: int) -> list[State]:
    x = _along(op, self, dim)
    return [x.plain(), _position(op, x)]


def softmax_over(op: Operation, x: State, dim: int, what: str = "") -> State:
    """exp(x) / Σ exp(x) over `dim`: 0 → 0; a shift that is constant along `dim` cancels."""
    if x.shape[dim] == 1:
        return op.constant(x.shape, nonneg=True, value=1.0, stochastic=1 << dim)
    along = 1 << dim
    x = op.settle(x.drop_shifts((x.shift & along) == 0), over=along)
    out = op.doubt_logarithms(op.require_zero(x, what, SOFTMAX_CURE, nonneg=True))
    if out.runs > 1 and out.dim == dim:
        out = op.mix(out, "takes the softmax over")
    return out.with_(stochastic=along)


@register_rule("aten.softmax", "aten._softmax", "aten.special_softmax", "aten._safe_softmax")
def softmax(op: Operation, self: State, dim: int, *_: Any, **__: Any) -> State:
    if not self.ndim:
        return op.constant()
    out = softmax_over(op, self, dim % self.ndim)
    # Where all scores are masked the safe one gives zeros.
    return out.with_(stochastic=0) if op.short == "_safe_softmax" else out


@register_rule("aten.log_softmax", "aten._log_softmax", "aten.special_log_softmax")
def log_softmax(op: Operation, self: State, dim: int, *_: Any, **__: Any) -> State:
    if not self.ndim or self.shape[dim] == 1:
        return op.zeros()
    return softmax_over(op, self, dim % self.ndim).with_(nonneg=False, stochastic=0)


def _sum_exponentials(op: Operation, x: State, over: int) -> State:
    """`x` for log Σ exp(x) `over` dimensions: 0 → 0, and a shift that is constant there passes."""
    passes = (x.shift & over) == 0
    out = op.doubt_logarithms(op.require_zero(op.settle(x, rows=~passes, over=over).drop_shifts(passes)))
    return out.with_(shift=np.where(passes, x.shift, 0), sure=np.where(passes, x.sure, 0))


@register_rule("aten.logsumexp")
def log_sum_exp(op: Operation, self: State, dim: Any, keepdim: bool = False) -> State:
    dims = _dims(dim)
    over = st.mask_over(dims, self.ndim)
    x = _sum_exponentials(op, self, over)
    return op.reduce(x, dims, keepdim, "extreme").with_(centre=(self, over, "extreme"))


@register_rule("aten.sort", "aten.topk", "aten.msort")
def sort(op: Operation, self: State, *args: Any, **named: Any) -> Any:
    position = 1 if op.short == "topk" else 0
    dim = 0 if op.short == "msort" else named.get("dim", args[position] if len(args) > position else -1)
    if isinstance(dim, bool):  # sort.stable puts the flag first
        dim = named.get("dim", -1)
    x = _along(op, self, dim)
    values = x.plain().with_(shape=op.shapes[0])
    return values if len(op.shapes) == 1 else [values, _position(op, values)]


def _along(op: Operation, x: State, dim: int) -> State:
    """`x` for a comparison of the elements along `dim`, which a shift that is constant there does not change."""
    dim %= max(x.ndim, 1)
    x = op.settle(x, rows=(x.shift >> dim & 1) != 0, over=1 << dim)
    return op.mix(x, "compares") if x.runs > 1 and x.dim == dim else x


@register_rule("aten.argsort")
def argsort(op: Operation, self: State, dim: Any = -1, *_: Any, **named: Any) -> State:
    if isinstance(dim, bool):  # argsort.stable puts the flag first
        dim = named.get("dim", -1)
    return _position(op, _along(op, self, dim))


@register_rule("aten.any", "aten.all")
def any_true(op: Operation, self: State, dim: Any = None, keepdim: bool = False) -> State:
    return op.reduce(op.sign(self), _dims(dim), keepdim)


def _reduce_windows(op: Operation, x: State, spatial: int, *, extreme: bool, padded: bool) -> State:
    """Averages or extremes in windows of the last `spatial` dimensions: degrees stay, a constant shift passes."""
    window = st.mask_of(range(x.ndim - spatial, x.ndim), x.ndim)
    if x.runs > 1 and window >> x.dim & 1:
        x = op.flatten_runs(x)
    if extreme:
        x = op.settle(x, rows=(x.shift & window) != 0, over=window)
    x = x.extend_shifts(window) if padded else x
    wide = np.where((x.ray & window) != 0, st.nontrivial(op.shape), x.ray)
    return x.plain().with_(
        shape=op.shapes[0],
        shift=x.shift,
        # Means over windows may be one where what they are the means of is not.
        sure=np.where((x.shift & window) != 0, x.sure & st.EVERY_DIM & ~window, x.sure)
        & (st.nontrivial(op.shapes[0]) | st.HAS_SHIFT),
        ray=wide,
        varies=(x.varies | (window if padded else 0)) & st.nontrivial(op.shapes[0]),
        floating=op.floating,
    )


def _nonzero(padding: Any) -> bool:
    return any(padding) if isinstance(padding, Sequence) else bool(padding)


@register_rule(*(f"aten.{n}{k}d" for n in ("avg_pool",) for k in (1, 2, 3)))
def average_pool(
    op: Operation, self: State, kernel_size: Any, stride: Any = None, padding: Any = 0, *more: Any, **named: Any
) -> State:
    spatial = int(op.short[-2])
    ceil = named.get("ceil_mode", more[0] if more else False)
    counted = named.get("count_include_pad", more[1] if len(more) > 1 else True)
    divisor = named.get("divisor_override", more[2] if len(more) > 2 else None)
    # Where the padding does not count, a window's mean is that of its true elements, and a shift passes unchanged.
    padded = divisor is not None or (counted and (_nonzero(padding) or bool(ceil)))
    out = _reduce_windows(op, self, spatial, extreme=False, padded=padded)
    window = st.mask_of(range(self.ndim - spatial, self.ndim), self.ndim)
    return out if padded else out.with_(centre=(self, window, "windows"))


@register_rule(*(f"aten.adaptive_avg_pool{k}d" for k in (1, 2, 3)))
def adaptive_average_pool(op: Operation, self: State, *_: Any) -> State:
    return _reduce_windows(op, self, int(op.short[-2]), extreme=False, padded=False)


@register_rule(
    *(f"aten.{n}{k}d" for n in ("max_pool", "adaptive_max_pool", "fractional_max_pool") for k in (1, 2, 3)),
    *(f"aten.max_pool{k}d_with_indices" for k in (1, 2, 3)),
)
def max_pool(op: Operation, self: State, *_: Any, **__: Any) -> Any:
    spatial = int(op.short.removesuffix("_with_indices")[-2])
    value = _reduce_windows(op, self, spatial, extreme=True, padded=False)
    if len(op.shapes) == 1:
        return value
    return [value, _position(op, value)]


@register_rule(
    *(f"aten.upsample_nearest{k}d" for k in (1, 2, 3)),
    *(f"aten._upsample_nearest_exact{k}d" for k in (1, 2, 3)),
    "aten.upsample_linear1d",
    "aten.upsample_bilinear2d",
    "aten._upsample_bilinear2d_aa",
    "aten.upsample_trilinear3d",
    "aten.upsample_bicubic2d",
    "aten._upsample_bicubic2d_aa",
)
def resize(op: Operation, self: State, *_: Any, **__: Any) -> State:
    out = _reduce_windows(op, self, self.ndim - 2, extreme=False, padded=False)
    return out if "bicubic" not in op.short else out.with_(nonneg=False)


@register_rule("aten.grid_sampler", "aten.grid_sampler_2d", "aten.grid_sampler_3d")
def grid_sample(op: Operation, input: State, grid: State, *_: Any) -> State:
    out = _reduce_windows(op, input, input.ndim - 2, extreme=False, padded=True)
    # Every sample has a grid of its own.
    full = st.nontrivial(op.shape)
    return op.condition(out.extend_shifts(full), grid).with_(nonneg=False, varies=full)


@register_rule(
    *aten(
        "fft_fft fft_ifft fft_rfft fft_irfft fft_fft2 fft_ifft2 fft_rfft2 fft_irfft2 "
        "fft_fftn fft_ifftn fft_rfftn fft_irfftn"
    )
)
def fourier(op: Operation, self: State, *_: Any, **__: Any) -> State:
    """A fixed linear map over some dimensions; all of them, to be safe."""
    x = op.mix(self, "sums over")
    full = st.nontrivial(op.shape)
    return x.plain().with_(
        shape=op.shape,
        shift=np.where(x.shifted, x.shift | full, 0),
        ray=np.where(x.broken, full, 0),
        varies=full,
        nonneg=False,
    )


@register_rule("aten.col2im")
def add_windows(op: Operation, self: State, *_: Any) -> State:
    """Overlapping windows added up, from (…, channels and places in the window, windows) to (…, channels, y, x)."""
    x, full = op.flatten_runs(self), st.nontrivial(op.shape)
    batch = 1 if len(op.shape) == 4 else 0
    return x.plain().with_(
        shape=op.shape,
        shift=np.where(x.shifted, x.shift | full, 0),
        ray=np.where(x.ray & ~batch != 0, full, x.ray & batch),
        varies=full,
    )


def _average(op: Operation, x: State) -> State:
    """A loss: mean, sum or the elements themselves, as the result's shape says."""
    return op.reduce(x, None, False) if op.shape == () else x.plain().with_(shape=op.shape)


@register_rule("aten.cross_entropy_loss", "aten.nll_loss_nd", "aten.nll_loss")
def cross_entropy(op: Operation, self: State, target: State, weight: State | None = None, *_: Any, **__: Any) -> State:
    classes = 1 if self.ndim > 1 else 0
    x = softmax_over(op, self, classes) if op.short == "cross_entropy_loss" else op.settle(self)
    x = op.reduce(x, [classes], False)
    for factor in (target if target.floating else None, weight):
        if factor is not None:
            x = op.multiply(x, op.reduce(op.require_zero(factor), None, False))
    return _average(op, x).with_(nonneg=False)


@register_rule("aten.mse_loss", "aten.l1_loss")
def distance(op: Operation, self: State, target: State, *_: Any, **__: Any) -> State:
    gap = op.settle(op.add(self, target, "is compared with", opposed=True))
    return _average(op, op.power(gap, 2 if op.short == "mse_loss" else 1)).with_(nonneg=True)


@register_rule(
    *aten(
        "smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_with_logits kl_div "
        "soft_margin_loss poisson_nll_loss"
    )
)
def fixed_loss(op: Operation, self: State, target: State, *more: Any, **named: Any) -> State:
    """Most have logarithms or exponentials in them."""
    each = op.multiply(op.doubt_logarithms(op.require_zero(self)), op.doubt_logarithms(op.require_zero(target)))
    for weight in (*more, *named.values()):
        each = op.multiply(each, op.require_zero(weight)) if isinstance(weight, State) else each
    return _average(op, op.mark_logarithm(each, self, target)).with_(nonneg=False)
