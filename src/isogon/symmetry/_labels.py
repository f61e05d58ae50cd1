"""Where elements go: an operation that only moves them is run on labels instead of numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from isogon.symmetry._state import State

Relabel = Callable[[Any], Any]
LARGEST = 1 << 26  # elements; beyond this moving labels would take longer than an answer is worth


def follow_runs(x: State, shape: Sequence[int], run: Relabel) -> tuple[int, npt.NDArray[np.int16]] | None:
    """Where the runs of `x` go: the dimension, and the run of each channel there; None if they spread over several."""
    if np.prod(x.shape) > LARGEST:
        return None
    # Runs of the same degrees have one label: then those of interleaved heads can be followed, too.
    first: dict[bytes, int] = {}
    columns = np.concatenate([x.degree, x.reason]).T.copy()
    runs = torch.tensor([first.setdefault(column.tobytes(), run) for run, column in enumerate(columns)])
    runs = runs.to(torch.int16)
    labels = torch.repeat_interleave(runs, torch.tensor(x.sizes))
    view = [-1 if i == x.dim else 1 for i in range(x.ndim)]
    try:
        moved = run(labels.view(view).expand(x.shape).contiguous())
    except (RuntimeError, TypeError):  # an operation on floating-point numbers only, or with tensors of its own
        return None
    if tuple(moved.shape) != tuple(shape) or moved.numel() == 0:
        return None
    for dim in range(len(shape)):
        line = moved[tuple(slice(None) if i == dim else slice(0, 1) for i in range(len(shape)))]
        if bool((moved == line).all()):
            return dim, line.reshape(-1).numpy()
    return None


def follow_dims(shape: Sequence[int], run: Relabel) -> list[int] | None:
    """For each dimension, the mask of the result's dimensions along which its index varies; None where unknown."""
    if np.prod(shape) > LARGEST // 16:  # once per dimension
        return None
    table = []
    for dim, size in enumerate(shape):
        view = [size if i == dim else 1 for i in range(len(shape))]
        try:
            # Labels start at 1, so that zeros which the operation puts in are told from them.
            moved = run(torch.arange(1, size + 1).view(view).expand(tuple(shape)).contiguous())
        except (RuntimeError, TypeError):
            return None
        varies = (bool((moved != moved.narrow(j, 0, 1)).any()) for j in range(moved.ndim))
        table.append(sum(1 << j for j, differs in enumerate(varies) if differs))
    return table
