"""When a run counts as diverged."""

from __future__ import annotations

import math
from collections.abc import Sequence

#: the loss of a guesser is ln(classes); a run whose loss is not below this part of it has learned nothing
STUCK = 0.98


def patience(epochs: int) -> int:
    """Epochs without learning after which a run is given up: a tenth of the run, at least 5."""
    return max(5, epochs // 10)


def is_stuck(losses: Sequence[float], classes: int, epochs: int) -> bool:
    """Whether the training loss was at chance, or above it, in each of the last `patience(epochs)` epochs.

    The papers drop diverged runs from their means and do not define them. Here it is a loss that is not
    finite, or this: networks with normalisation seldom overflow, they stop learning.

    >>> is_stuck([2.31] * 5, classes=10, epochs=20), is_stuck([2.31] * 4 + [2.1], classes=10, epochs=20)
    (True, False)
    """
    span = patience(epochs)
    return len(losses) >= span and all(loss >= STUCK * math.log(classes) for loss in losses[-span:])
