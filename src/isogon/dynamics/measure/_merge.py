"""Puts together what several watches (optimizers, devices) measured in the same steps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from isogon.dynamics.measure._gradients import buffer_factor
from isogon.dynamics.measure._optimizer_state import Settings
from isogon.dynamics.measure._sum_names import EpochSum, StepSum
from isogon.dynamics.measure._watch import Measurements
from isogon.theory import Floats

# The sums' names as a chunk has them, in the order of their rows.
_STEP_ROWS = tuple(row.name.lower() for row in StepSum)
_EPOCH_ROWS = tuple(f"epoch_{row.name.lower()}" for row in EpochSum)


@dataclass(frozen=True)
class WatchPart:
    """What one watch measured; `places` are its tensors' in the whole list, `group_of` their parameter groups."""

    places: NDArray[np.int64]
    group_of: NDArray[np.int64]
    steps: Measurements
    epochs: Measurements

    def split(self, step: int) -> tuple[WatchPart, WatchPart]:
        """What was measured before `step`, and the rest."""
        before, after = (
            WatchPart(self.places, self.group_of, _select(self.steps, step, early), _select(self.epochs, step, early))
            for early in (True, False)
        )
        return before, after


@dataclass(frozen=True)
class Chunk:
    """Consecutive measured steps: arrays of one entry per step, or (steps, tensors) with NaN where a tensor has none.

    `epoch_steps` is 0 where no epoch ends. `settings` holds every setting that occurs, `setting` its place there, −1
    where a tensor was not measured. Of the sums, `change_dot_after` is ⟨b − a, b⟩ and `adjusted` h = ‖g‖² + 2μ⟨v, g⟩.
    """

    step: NDArray[np.int64]
    epoch: NDArray[np.int64]
    epoch_steps: NDArray[np.int64]
    settings: list[Settings]
    setting: NDArray[np.int64]
    sums: dict[str, Floats]


def merge_parts(parts: Iterable[WatchPart], count: int) -> Chunk:
    """The parts' measurements in the order of steps, each with an entry for each of `count` tensors."""
    parts = list(parts)
    step = np.array(sorted({n for part in parts for n in (*part.steps.step, *part.epochs.step)}), dtype=int)
    epoch, epoch_steps = np.zeros(len(step), dtype=int), np.zeros(len(step), dtype=int)
    sums = {name: np.full((len(step), count), np.nan) for name in (*_STEP_ROWS, *_EPOCH_ROWS)}
    setting = np.full((len(step), count), -1)
    known: dict[Settings, int] = {}
    for part in parts:
        for names, measurements in ((_EPOCH_ROWS, part.epochs), (_STEP_ROWS, part.steps)):
            if not measurements.step:
                continue
            rows = np.searchsorted(step, measurements.step)
            epoch[rows] = measurements.epoch
            epoch_steps[rows] += measurements.steps if names is _EPOCH_ROWS else 0
            for index, name in enumerate(names):
                sums[name][np.ix_(rows, part.places)] = measurements.table[:, index]
            groups = np.array([[known.setdefault(s, len(known)) for s in of_step] for of_step in measurements.groups])
            setting[np.ix_(rows, part.places)] = groups[:, part.group_of]
    # A step that was not measured but ends an epoch has the norm after it.
    sums["weight_sq"] = np.where(np.isnan(sums["weight_sq"]), sums["epoch_weight_sq"], sums["weight_sq"])
    settings = list(known)
    factor = np.array([*map(buffer_factor, settings), np.nan])[setting]
    sign = np.array([*(-1.0 if s.maximize else 1.0 for s in settings), 1.0])[setting]
    sums["adjusted"] = sums["grad_sq"] + factor * sums.pop("buffer_dot_grad")
    sums["weight_dot_grad"] = sign * sums["weight_dot_grad"]
    for name in ("change_dot_after", "epoch_change_dot_after"):  # from ⟨a − b, b⟩
        sums[name] = -sums[name]
    return Chunk(step, epoch, epoch_steps, settings, setting, sums)


def _select(measurements: Measurements, step: int, early: bool) -> Measurements:
    chosen = [i for i, number in enumerate(measurements.step) if (number < step) == early]
    return Measurements(
        step=[measurements.step[i] for i in chosen],
        epoch=[measurements.epoch[i] for i in chosen],
        steps=[measurements.steps[i] for i in chosen],
        groups=[measurements.groups[i] for i in chosen],
        table=measurements.table[chosen],
    )
