"""Normalisation layers: ghost batch norm, and one function that makes a norm of any kind the papers use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import nn

from isogon.errors import check_choice, check_whole

NormKind = Literal["batch", "ghost", "group", "layer", "instance"]


class _GhostBatchNorm(nn.modules.batchnorm._BatchNorm):
    """Batch norm whose training statistics are those of consecutive ghost batches (Hoffer et al. 2017; Yun 3.1).

    In training mode the batch is cut into chunks of `ghost_batch` samples in order, and torch's batch norm is
    applied to each chunk in turn. So everything is by construction that of batch norm on the chunks: outputs
    and gradients; the running statistics, which decay once per chunk, r ← (1 − momentum) r + momentum · s_i
    for i = 1 … k, as Hoffer et al. do it (their window, about ghost_batch / momentum samples, then does not
    depend on the batch size); and `num_batches_tracked`, which counts chunks.

    A batch that is not a multiple leaves a smaller chunk at the end; a remainder of one sample joins the
    chunk before it, because one sample has no variance (in 2-d, too little of it). A batch no larger than
    `ghost_batch` is one chunk. In eval mode this is torch's batch norm. State-dict keys are those of
    `nn.BatchNorm1d` and `nn.BatchNorm2d`.

    Cutting is also the fastest way on a CPU: folding the chunks into channels calls batch norm once but
    copies the activations twice more each way, which takes about 1.4 to 4 times as long. The number of chunks is
    fixed when a model is compiled or exported, so a dynamic batch dimension is not possible.
    """

    def __init__(
        self,
        num_features: int,
        ghost_batch: int = 64,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device=device, dtype=dtype)
        self.ghost_batch = check_whole("ghost_batch", ghost_batch, cure="the papers use 64")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        sizes = _chunk_sizes(input.shape[0], self.ghost_batch)
        if not self.training or len(sizes) < 2:
            return super().forward(input)
        normalise = super().forward
        return torch.cat([normalise(chunk) for chunk in torch.split(input, sizes)])

    def extra_repr(self) -> str:
        common: str = super().extra_repr()  # type: ignore[no-untyped-call]
        return f"{common}, ghost_batch={self.ghost_batch}"


def _chunk_sizes(samples: int, ghost_batch: int) -> list[int]:
    """Full chunks, then the remainder, which joins the last full chunk when it is a single sample.

    >>> _chunk_sizes(130, 64), _chunk_sizes(129, 64), _chunk_sizes(3, 64)
    ([64, 64, 2], [64, 65], [3])
    """
    full, rest = divmod(samples, ghost_batch)
    sizes = [ghost_batch] * full
    if rest == 1 and full:
        sizes[-1] += 1
    elif rest:
        sizes.append(rest)
    return sizes


class GhostBatchNorm1d(_GhostBatchNorm, nn.BatchNorm1d):
    __doc__ = _GhostBatchNorm.__doc__


class GhostBatchNorm2d(_GhostBatchNorm, nn.BatchNorm2d):
    __doc__ = _GhostBatchNorm.__doc__


#: every module that counts as a normalisation, for conversion and initialisation; a new one is added here
NORMS = (
    nn.modules.batchnorm._BatchNorm,
    nn.modules.instancenorm._InstanceNorm,
    nn.GroupNorm,
    nn.LayerNorm,
    nn.RMSNorm,
)


def _layer_norm(channels: int, affine: bool, _ghost_batch: int) -> nn.Module:
    return nn.LayerNorm(channels, elementwise_affine=affine)


#: (channels, affine, ghost_batch) → a module
_Maker = Callable[[int, bool, int], nn.Module]
#: kind → what makes it for features, and for images
_MAKERS: Mapping[NormKind, tuple[_Maker, _Maker]] = {
    "batch": (
        lambda channels, affine, _: nn.BatchNorm1d(channels, affine=affine),
        lambda channels, affine, _: nn.BatchNorm2d(channels, affine=affine),
    ),
    "ghost": (
        lambda channels, affine, ghost_batch: GhostBatchNorm1d(channels, ghost_batch, affine=affine),
        lambda channels, affine, ghost_batch: GhostBatchNorm2d(channels, ghost_batch, affine=affine),
    ),
    "group": (_layer_norm, lambda channels, affine, _: nn.GroupNorm(_group_count(channels), channels, affine=affine)),
    "layer": (_layer_norm, lambda channels, affine, _: nn.GroupNorm(1, channels, affine=affine)),
    "instance": (_layer_norm, lambda channels, affine, _: nn.InstanceNorm2d(channels, affine=affine)),
}
NORM_KINDS = tuple(_MAKERS)


def make_norm(kind: NormKind, channels: int, *, affine: bool = True, ghost_batch: int = 64, dim: int = 2) -> nn.Module:
    """A normalisation of (N, C, H, W) activations (`dim=2`) or of (N, C) features (`dim=1`).

    | kind     | statistics over, dim=2                                     | dim=1                |
    |----------|------------------------------------------------------------|----------------------|
    | batch    | N, H, W                                                    | N                    |
    | ghost    | the same in chunks of `ghost_batch` samples                | N in chunks          |
    | group    | H, W and the channels of a group, per sample               | C, as layer          |
    | layer    | C, H, W, per sample (group norm with one group)            | C                    |
    | instance | H, W, per sample and channel                               | C, as layer          |

    The number of groups is the largest of 32, 16, 8, 4, 2, 1 that divides the channels and leaves at least
    two in a group. Features have no positions, so that instance norm does not exist for them and group norm
    would leave little (a group of two features becomes ±1): both are layer norm there.
    """
    check_choice("kind", kind, NORM_KINDS, cure="for example batch")
    check_whole("dim", dim, low=1, high=2, cure="write 2 for images, 1 for features")
    of_features, of_images = _MAKERS[kind]
    return (of_images if dim == 2 else of_features)(channels, affine, ghost_batch)


def _group_count(channels: int) -> int:
    return next((g for g in (32, 16, 8, 4, 2) if channels % g == 0 and channels // g >= 2), 1)
