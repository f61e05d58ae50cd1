"""Ghost batch norm with ReLU and the residual sum, forward and backward, in two kernels each way.

    y = max(0, γ x̂ + β + r),   x̂ = (x − mean) / √(var + ε),

mean and variance over the rows of a ghost batch; r and max are optional. An activation of N×C×H×W in channels-last
layout is a matrix of N·H·W rows and C columns, a ghost batch a stretch of its rows. The first kernel of each direction
leaves sums (or means) of parts of the rows, the second one joins them and makes the result, so that every element is
read twice and written once, and the order of additions is fixed. The ordinary operations are
`nets.GhostBatchNorm2d` (or `nn.BatchNorm2d`, one ghost batch), a sum, and `torch.relu`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton

from isogon.lab.gpu.fused._norm_kernels import add_up_backward, add_up_forward, gradient, normalise

# Elements and warps of a tile.
_TILE, _WARPS = 8192, 8
# Parts of which a program of the second kernel adds the sums.
_MOST_PARTS = 64


class Norm(NamedTuple):
    """What a norm layer is made of, apart from its input; `gamma` and `running_mean` may be None."""

    gamma: torch.Tensor | None
    beta: torch.Tensor | None
    running_mean: torch.Tensor | None
    running_var: torch.Tensor | None
    momentum: float
    eps: float


def programs_beside(lanes: int, multiprocessors: int) -> int:
    """Programs that a norm launches when so many lanes share the GPU.

    Alone, it takes all of the GPU. A third of that keeps the memory busy enough, and leaves the rest to the
    convolutions of other lanes (benchmarks/results/gpu_lanes.md). Sums are added up in another order then.
    """
    return max(1, multiprocessors // min(lanes, 3))


def fused_norm(
    x: torch.Tensor,
    norm: Norm,
    groups: int,
    *,
    residual: torch.Tensor | None = None,
    relu: bool = False,
    programs: int,
) -> torch.Tensor:
    """The norm of `x` (N×C×H×W in channels-last layout, or N×C) in `groups` ghost batches of equal size."""
    y: torch.Tensor = _FusedNorm.apply(x, norm.gamma, norm.beta, residual, norm, groups, relu, 0, programs)[0]  # type: ignore[no-untyped-call]
    return y


def forked_norm(
    x: torch.Tensor,
    norm: Norm,
    groups: int,
    *,
    residual: torch.Tensor | None = None,
    relu: bool = False,
    stride: int = 1,
    programs: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`fused_norm` y for two users, the second of which needs only y[:, :, ::stride, ::stride].

    The sum of the gradients that come back is made on the way.
    """
    return _FusedNorm.apply(x, norm.gamma, norm.beta, residual, norm, groups, relu, stride, programs)  # type: ignore[no-any-return,no-untyped-call]


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

    def writing(self, programs: int) -> tuple[int, int, int]:
        """The programs of the second kernels: parts of the rows and one without, ghost batches, blocks of columns."""
        rows, columns = self._tile
        blocks = -(-self.columns // columns)
        parts = max(1, min(programs // (self.groups * blocks), -(-self.rows // rows)))
        return parts + 1, self.groups, blocks

    def reading(self, programs: int) -> tuple[int, int, int]:
        """The programs of the first kernels; their parts are a power of two, as the second need it."""
        parts, groups, blocks = self.writing(programs)
        return 1 << (min(parts - 1, _MOST_PARTS).bit_length() - 1), groups, blocks

    @property
    def _warps(self) -> int:
        rows, columns = self._tile
        return max(1, min(_WARPS, rows * columns // 256))

    def cut(self) -> dict[str, Any]:
        """How all kernels cut the matrix."""
        rows, columns = self._tile
        whole = self.rows % rows == 0 and self.columns % columns == 0
        return {"ROWS": rows, "COLUMNS": columns, "WHOLE": whole, "num_warps": self._warps}

    def abreast(self, x: torch.Tensor) -> int:
        """Rows of a tile that the threads load at once, 16 bytes each."""
        rows, columns = self._tile
        return max(1, min(rows, self._warps * 32 * 16 // x.element_size() // columns))


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
        programs: int,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        x = _rows_first(x)
        residual = None if residual is None else _rows_first(residual)
        shape = _Shape.of(x, groups)
        moments = x.new_empty(2, groups, shape.columns, dtype=torch.float32)
        y = torch.empty_like(x)
        thin = torch.empty_like(x[:, :, ::stride, ::stride]) if stride > 1 else y
        given = (x, x if residual is None else residual, x if gamma is None else gamma, x if beta is None else beta, y)
        tracked = [moments if running is None else running for running in (norm.running_mean, norm.running_var)]
        kinds = {
            "AFFINE": gamma is not None,
            "RESIDUAL": residual is not None,
            "RELU": relu,
            "TRACK": norm.running_mean is not None,
        }
        grid, cut = shape.reading(programs), shape.cut()
        parts = x.new_empty(2, groups, grid[0], shape.columns, dtype=torch.float32)
        add_up_forward[grid](x, parts, *shape, PARTS=grid[0], ABREAST=shape.abreast(x), **cut)
        numbers = (*shape, *_sides(x), norm.eps, norm.momentum)
        normalise[shape.writing(programs)](
            *given, thin, parts, moments, *tracked, *numbers, PARTS=grid[0], STRIDE=max(1, stride), **kinds, **cut
        )
        ctx.shape, ctx.relu, ctx.residual, ctx.stride = shape, relu, residual is not None, stride
        ctx.programs = programs
        ctx.save_for_backward(x, gamma, beta, y if relu and residual is not None else None, moments)
        ctx.set_materialize_grads(False)
        if stride == 0:
            return y, None
        return y, thin if stride > 1 else y.view_as(y)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        x, gamma, beta, y, moments = ctx.saved_tensors
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
        slopes = (dgamma, dbeta) if affine else (moments, moments)
        given = (dy, dy if more is None else more, x, x if y is None else y, *weights, moments, through)
        kinds = {"AFFINE": affine, "FORKED": more is not None, "RESIDUAL": masked, "RELU": ctx.relu}
        grid, cut = shape.reading(ctx.programs), shape.cut()
        parts = x.new_empty(2, shape.groups, grid[0], shape.columns, dtype=torch.float32)
        kinds |= {"STRIDE": stride, "ABREAST": shape.abreast(x)}
        add_up_backward[grid](*given, parts, *shape, *_sides(x), PARTS=grid[0], **kinds, **cut)
        given = (through, x, *weights, moments, parts, dx, *slopes)
        mask = ctx.relu and through is dy
        gradient[shape.writing(ctx.programs)](*given, *shape, PARTS=grid[0], AFFINE=affine, MASK=mask, **cut)
        return dx, dgamma, dbeta, through if ctx.residual else None, None, None, None, None, None


def _sides(x: torch.Tensor) -> tuple[int, int]:
    """Height and width; features have none."""
    return (x.shape[2], x.shape[3]) if x.dim() == 4 else (1, 1)


def _rows_first(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x.contiguous()
