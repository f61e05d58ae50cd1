"""The names of the sums that are made at a measured step and at the end of an epoch: which row holds which.

a are the weights before a step (or at the start of an epoch), b those after it, g the gradient, v the momentum buffer
before the step. A new sum is a name here, a line in each of the three classes of `Sums`, and in `_merge` if it is to
reach the rows under another name or sign.
"""

from __future__ import annotations

from enum import IntEnum


class StepSum(IntEnum):
    """Rows of `Sums.step`; the squares come first, so that one call can square the norms of all three."""

    WEIGHT_SQ = 0  # ‖a‖²
    GRAD_SQ = 1  # ‖g‖²
    CHANGE_SQ = 2  # ‖a − b‖²
    WEIGHT_DOT_GRAD = 3  # ⟨a, g⟩
    BUFFER_DOT_GRAD = 4  # ⟨v, g⟩
    CHANGE_DOT_AFTER = 5  # ⟨a − b, b⟩


class EpochSum(IntEnum):
    """Rows of `Sums.epoch`."""

    WEIGHT_SQ = 0  # ‖b‖²
    CHANGE_SQ = 1  # ‖a − b‖²
    CHANGE_DOT_AFTER = 2  # ⟨a − b, b⟩


#: squares of norms
SQUARES = (StepSum.WEIGHT_SQ, StepSum.GRAD_SQ, StepSum.CHANGE_SQ)
#: sums that a tensor without a gradient does not have, with the power of the gradient in each
GRADIENT_POWER = {StepSum.GRAD_SQ: 2, StepSum.WEIGHT_DOT_GRAD: 1, StepSum.BUFFER_DOT_GRAD: 1}
#: the rows of `Sums.step` that are those of `Sums.epoch` where a is the epoch's start, in their order
EPOCH_ROWS = (StepSum.WEIGHT_SQ, StepSum.CHANGE_SQ, StepSum.CHANGE_DOT_AFTER)
