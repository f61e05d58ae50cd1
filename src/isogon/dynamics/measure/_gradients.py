"""Reading gradients just before the optimizer uses them: closures, loss scales, sparse ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from operator import attrgetter
from typing import Any

import torch

from isogon.dynamics.measure._optimizer_state import Settings
from isogon.dynamics.measure._sum_names import GRADIENT_POWER
from isogon.theory import COUPLED

_GRAD, _IS_SPARSE = attrgetter("grad"), attrgetter("is_sparse")


def read_gradients(parameters: Sequence[torch.nn.Parameter]) -> list[torch.Tensor | None]:
    """The gradients, sparse ones made dense."""
    gradients = [*map(_GRAD, parameters)]  # loops in C: this is done at every measured step
    try:
        if not any(map(_IS_SPARSE, gradients)):
            return gradients
    except AttributeError:  # some have none
        pass
    return [g.to_dense() if g is not None and g.is_sparse else g for g in gradients]


def unscale_(table: torch.Tensor, scale: torch.Tensor) -> None:
    """Take the loss scale s out of the rows of `Sums.step`: ‖g‖² by s², ⟨a, g⟩ and ⟨v, g⟩ by s.

    A fused optimizer takes it out of the gradients in its own kernel, after they were measured.
    """
    inverse = scale.double().reciprocal().reshape(())
    for row, power in GRADIENT_POWER.items():
        table[row] *= inverse**power


def buffer_factor(settings: Settings) -> float:
    """c in h = ‖g‖² + c⟨v, g⟩, v before the step: 2μ, NaN where the weight decay is decoupled and h has no meaning.

    Dampening τ makes the buffer (1 − τ) times as long; `maximize` steps along −g, and the buffer gathers that.
    """
    if settings.kind not in COUPLED:
        return math.nan
    return (-2 if settings.maximize else 2) * settings.momentum / (1 - settings.dampening)


def measure_in_closure(
    args: tuple[Any, ...], kwargs: dict[str, Any], measure: Callable[[], None]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """The arguments of `step` with `measure` called once the closure has made the gradients; None without a closure.

    A step's pre-hook may replace its arguments, so that the gradient is read where it exists: before the optimizer
    changes it (PyTorch's foreach Nesterov does) and before the weights move. `args` begins with the optimizer.
    """
    closure = args[1] if len(args) > 1 else kwargs.get("closure")
    if closure is None:
        return None
    called = False

    @wraps(closure)
    def measuring_closure() -> Any:
        nonlocal called
        loss = closure()
        if not called:  # L-BFGS calls it again, at other weights
            called = True
            with torch.no_grad():
                measure()
        return loss

    if len(args) > 1:
        return (args[0], measuring_closure, *args[2:]), kwargs
    return args, {**kwargs, "closure": measuring_closure}
