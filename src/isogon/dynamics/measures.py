"""What is measured, as pure functions: η = `lr`, λ = `weight_decay`, μ = `momentum`, w weights, g gradient, v buffer.

Every function takes one tensor or a sequence of tensors. A sequence counts as one long vector, the tensors joined (the
layer `all` of the records), and nothing is concatenated for it. Sums are accumulated in float64 whatever the weights'
type.

Step angles are 1e-4 to 1e-2 rad, where the arccos of a float32 cosine is noise; bfloat16 weights cannot resolve 1e-3.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike

from isogon.errors import ArgumentError, check_number
from isogon.theory import Floats

#: one tensor, or several that count as one vector
TensorOrTensors = torch.Tensor | Sequence[torch.Tensor]


def angle(before: TensorOrTensors, after: TensorOrTensors) -> float:
    """∠(u, v) = 2·atan2(‖u − v‖, ‖u + v‖) of the unit vectors, in radians; NaN where a norm is 0.

    The angular update of a step (Wan et al., equation 11) or of an epoch (Yun et al., equation 11).
    """
    scales = norm(before), norm(after)
    if 0 in scales:
        return math.nan
    apart = together = 0.0
    for a, b in _pairs(before, after):
        u, v = a / scales[0], b / scales[1]
        apart += _square(u - v)
        together += _square(u + v)
    return 2 * math.atan2(math.sqrt(apart), math.sqrt(together))


def angle_from_sums(before_sq: ArrayLike, change_sq: ArrayLike, change_dot_after: ArrayLike) -> Floats:
    """The same angle from ‖a‖², ‖b − a‖² and ⟨b − a, b⟩, a before and b after, arrays welcome.

    ‖u − v‖² = (‖b − a‖² − (‖b‖ − ‖a‖)²)/(‖a‖‖b‖), with ‖b‖² − ‖a‖² = 2⟨b − a, b⟩ − ‖b − a‖² so that the two norms are
    never subtracted. These sums add up over tensors, so that the joint angle costs nothing more.
    """
    a_sq, change, dot = (np.asarray(x, dtype=np.float64) for x in (before_sq, change_sq, change_dot_after))
    gain = 2 * dot - change
    with np.errstate(divide="ignore", invalid="ignore"):
        a, b = np.sqrt(a_sq), np.sqrt(a_sq + gain)
        chord = (change - (gain / (a + b)) ** 2) / (a * b)
        return np.asarray(2 * np.arcsin(np.sqrt(np.clip(chord, 0.0, 4.0)) / 2))


def accumulated_angle(snapshots: Iterable[TensorOrTensors]) -> float:
    """The angles between successive snapshots, added up: the way turned (Wan et al.'s linear-scaling study)."""
    total, before = 0.0, None
    for after in snapshots:
        if before is not None:
            total += angle(before, after)
        before = after
    return total


def distance(before: TensorOrTensors, after: TensorOrTensors) -> float:
    """‖w_T − w_{T+D}‖ (Li, Lyu and Arora, figure 6b)."""
    return math.sqrt(sum(_square(b - a) for a, b in _pairs(before, after)))


def norm(weights: TensorOrTensors) -> float:
    """‖w‖."""
    return math.sqrt(sum(_square(w.double()) for w in _as_list(weights)))


def dot(left: TensorOrTensors, right: TensorOrTensors) -> float:
    """⟨u, v⟩."""
    return sum(float(torch.sum(a * b)) for a, b in _pairs(left, right))


def effective_lr(weights: TensorOrTensors, *, lr: float) -> float:
    """η/‖w‖² (Yun et al., equation 9)."""
    return lr / norm(weights) ** 2


def effective_lr_epoch(weights: TensorOrTensors, *, lr: float, batch_size: int, samples: int) -> float:
    """η N/(B‖w‖²), N = `samples`, B = `batch_size` (Yun et al., equation 10)."""
    return effective_lr(weights, lr=lr) * samples / batch_size


def unit_grad_sq(weights: TensorOrTensors, gradient: TensorOrTensors) -> float:
    """‖g̃‖² = ‖g‖²‖w‖² (Wan et al., definition 1)."""
    return (norm(gradient) * norm(weights)) ** 2


def adjusted_grad_sq(
    weights: TensorOrTensors, gradient: TensorOrTensors, buffer_before: TensorOrTensors, *, momentum: float
) -> float:
    """h̃_t = (‖g_t‖² + 2μ⟨v_{t−1}, g_t⟩)‖w_t‖², the buffer taken before the step (Wan et al., theorem 2)."""
    h = norm(gradient) ** 2 + 2 * momentum * dot(buffer_before, gradient)
    return h * norm(weights) ** 2


def adjusted_grad_sq_after(
    weights: TensorOrTensors, gradient: TensorOrTensors, buffer_after: TensorOrTensors, *, weight_decay: float
) -> float:
    """The same h̃_t with the buffer after the step: (2⟨v_t, g_t⟩ − ‖g_t‖² − 2λ⟨w_t, g_t⟩)‖w_t‖², w_t still before it.

    It holds because v_t = μ v_{t−1} + g_t + λ w_t, and is the form to use where a closure makes the gradient.
    """
    h = 2 * dot(buffer_after, gradient) - norm(gradient) ** 2 - 2 * weight_decay * dot(weights, gradient)
    return h * norm(weights) ** 2


def radial(weights: TensorOrTensors, gradient: TensorOrTensors) -> float:
    """⟨w, g⟩/(‖w‖‖g‖): 0 at every point iff w is scale-invariant; NaN where a norm is 0."""
    size = norm(weights) * norm(gradient)
    return dot(weights, gradient) / size if size else math.nan


def gradient_norm_ratio(large: TensorOrTensors, small: TensorOrTensors, *, samples_ratio: float = 1.0) -> float:
    """‖g_large‖/‖g_small‖ of gradients summed over their samples (Wan et al., figure 8).

    For gradients of a mean loss give `samples_ratio`, the large batch over the small one, which turns them into sums.
    With k that ratio, independent noise gives √k and full alignment k.
    """
    check_number("samples_ratio", samples_ratio, low=0, low_open=True, cure="1 where the gradients are sums already")
    size = norm(small)
    return samples_ratio * norm(large) / size if size else math.nan


def summed_gradient(
    parameters: Sequence[torch.Tensor],
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    batches: Iterable[tuple[torch.Tensor, torch.Tensor]],
) -> list[torch.Tensor]:
    """Σ over samples of the gradient; `loss(inputs, targets)` is the mean over its batch. `.grad` is not touched."""
    total = [torch.zeros_like(p) for p in parameters]
    for inputs, targets in batches:
        gradients = torch.autograd.grad(loss(inputs, targets), parameters, allow_unused=True)
        for sum_, gradient in zip(total, gradients, strict=True):
            if gradient is not None:
                sum_.add_(gradient, alpha=len(inputs))
    return total


def _as_list(tensors: TensorOrTensors) -> Sequence[torch.Tensor]:
    listed = [tensors] if isinstance(tensors, torch.Tensor) else tensors
    if not listed:
        raise ArgumentError("tensors", "at least one", listed, "pass the weights to measure")
    return [t.detach() for t in listed]


def _pairs(left: TensorOrTensors, right: TensorOrTensors) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Matching tensors of both sides in float64."""
    lefts, rights = _as_list(left), _as_list(right)
    shapes = [t.shape for t in lefts], [t.shape for t in rights]
    if shapes[0] != shapes[1]:
        raise ArgumentError("tensors", "of the same shapes on both sides", shapes, "compare a weight with itself")
    for a, b in zip(lefts, rights, strict=True):
        yield a.double(), b.double()


def _square(values: torch.Tensor) -> float:
    return float(torch.sum(values * values))
