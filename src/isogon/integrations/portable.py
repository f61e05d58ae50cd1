"""A monitor's state in the types that a checkpoint may hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

_ARRAY = "numpy"


def portable_state(state: Any) -> Any:
    """`state` with tensors, marked as such, for NumPy's arrays, and plain numbers for its scalars.

    `torch.load` reads no array unless told that it may run any code the file contains (`weights_only=False`).

    >>> portable_state({"steps": np.int64(3), "norms": [np.ones(2)]})
    {'steps': 3, 'norms': [{'numpy': tensor([1., 1.], dtype=torch.float64)}]}
    """
    if isinstance(state, dict):
        return {name: portable_state(value) for name, value in state.items()}
    if isinstance(state, list | tuple):
        return [portable_state(value) for value in state]
    if isinstance(state, np.ndarray):
        return {_ARRAY: torch.from_numpy(state)}
    return state.item() if isinstance(state, np.generic) else state


def restored_state(state: Any) -> Any:
    """The way back.

    >>> restored_state(portable_state({"norms": [np.ones(2)]}))
    {'norms': [array([1., 1.])]}
    """
    if isinstance(state, dict):
        if state.keys() == {_ARRAY}:
            return state[_ARRAY].cpu().numpy()
        return {name: restored_state(value) for name, value in state.items()}
    return [restored_state(value) for value in state] if isinstance(state, list) else state
