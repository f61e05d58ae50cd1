"""Arrays in a saved state: as tensors, since `torch.load` reads no NumPy arrays unless it may run any code at all."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray


def to_tensor(values: ArrayLike) -> torch.Tensor:
    """A copy of `values` for a state.

    >>> to_tensor(np.ones(2))
    tensor([1., 1.], dtype=torch.float64)
    """
    return torch.from_numpy(np.array(values))


def to_array(values: torch.Tensor) -> NDArray[Any]:
    """The inverse, from the device that the state was loaded onto.

    >>> to_array(to_tensor([True, False]))
    array([ True, False])
    """
    return np.array(values.cpu().numpy())
