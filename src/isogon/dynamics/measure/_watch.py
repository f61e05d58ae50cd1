"""One optimizer watched through its own step hooks: sums on the device now, numbers on the host when asked for."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, compress, count, repeat
from operator import is_, itemgetter
from typing import Any

import numpy as np
import torch

from isogon.dynamics.measure._gradients import measure_in_closure, read_gradients, unscale_
from isogon.dynamics.measure._optimizer_state import (
    MomentumBuffers,
    Settings,
    copy_group,
    group_settings,
    optimizer_kind,
)
from isogon.dynamics.measure._shards import add_up, local_part, shard_groups
from isogon.dynamics.measure._sum_names import GRADIENT_POWER, EpochSum, StepSum
from isogon.dynamics.measure._sums import sums_for
from isogon.errors import IsogonError
from isogon.theory import COUPLED, Floats


class ParametersChangedError(IsogonError):
    """The optimizer has other parameters than when the monitor was made."""


@dataclass(frozen=True)
class Measurements:
    """Measurements on the host, one entry each: steps, or ends of epochs.

    `step` counts from 0; `steps` are those of the epoch that ends there; `groups` are the settings of each parameter
    group. `table` is (measurements, rows, tensors) with the rows of `Sums.step` or `epoch`, and NaN where a tensor
    had no gradient.
    """

    step: list[int]
    epoch: list[int]
    steps: list[int]
    groups: list[tuple[Settings, ...]]
    table: Floats


@dataclass(frozen=True)
class _Measured:
    """A measured step or epoch whose numbers are still on the device; `number` is the attempt, or the epoch's step.

    `groups` are the parameter groups as they were then, by `copy_group`.
    """

    number: int
    epoch: int
    groups: Sequence[Mapping[str, Any]]
    table: torch.Tensor
    without_gradient: tuple[int, ...] = ()
    steps: int = 0


class Watch:
    """Counts the steps of `optimizer` and measures those for which `should_measure(watch)` is true; steps count from 0.

    A step that a GradScaler makes a fused optimizer skip still calls the hooks. Whether it was one is only known on the
    device, so `steps` counts it until `settle` has looked.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        parameters: Mapping[str, torch.nn.Parameter],
        *,
        should_measure: Callable[[Watch], bool],
        on_step: Callable[[Watch], None],
    ) -> None:
        self.optimizer, self.names, self.kind = optimizer, tuple(parameters), optimizer_kind(optimizer)
        self._parameters = list(parameters.values())
        # Of weights that several processes share each sums over its part; the sums are then added up.
        self._shard_groups = shard_groups(self._parameters[0])
        self._sums = sums_for([*map(local_part, self._parameters)])
        self._buffers = MomentumBuffers(optimizer, self._parameters)
        places = {id(p): i for i, group in enumerate(optimizer.param_groups) for p in group["params"]}
        #: the parameter group of each tensor
        self.group_of = np.array([places[id(p)] for p in self._parameters])
        self._should_measure, self._on_step = should_measure, on_step
        self._known = [*_iterate_parameters(optimizer)]
        self._attempts = 0
        self._skipped: list[int] = []
        self._flags: list[tuple[int, torch.Tensor]] = []
        self._steps_waiting: list[_Measured] = []
        self._epochs_waiting: list[_Measured] = []
        # Weights as `Sums` keeps them: at the start of the epoch, and with the gradient before the step under way.
        self._epoch_start: Any = None
        self._before_step: Any = None
        self._measured_gradient = False
        self._without_gradient: tuple[int, ...] = ()
        self._scale: torch.Tensor | None = None
        self._last_groups: list[dict[str, Any]] = []
        #: epochs ended, and so the number of the one under way
        self.epoch = 0
        self._in_epoch = False
        self._epoch_first_step = 0
        # Not traced where the optimizer's step is compiled: what the hooks do is for the host alone.
        disable: Any = torch.compiler.disable
        self._handles = [
            optimizer.register_step_pre_hook(disable(self._before)),
            optimizer.register_step_post_hook(disable(self._after)),
        ]

    @property
    def steps(self) -> int:
        """Steps made so far."""
        return self._attempts - len(self._skipped)

    @property
    def epoch_steps(self) -> int:
        """Steps made in the epoch under way."""
        return self.steps - self._epoch_first_step if self._in_epoch else 0

    @property
    def waiting(self) -> int:
        """Measured steps whose numbers are still on the device."""
        return len(self._steps_waiting)

    def close(self) -> None:
        """Remove the hooks and let the snapshots go."""
        for handle in self._handles:
            handle.remove()
        self._before_step = self._epoch_start = None
        self._measured_gradient = self._in_epoch = False

    def settle(self) -> None:
        """Find out which steps were skipped; waits for the device where there is any doubt."""
        if self._flags:
            flags = torch.stack([flag for _, flag in self._flags]).tolist()
            self._skipped += [number for (number, _), skip in zip(self._flags, flags, strict=True) if skip]
            self._flags = []

    def take(self) -> tuple[Measurements, Measurements]:
        """The steps and the ends of epochs measured since the last call, brought to the host in one transfer."""
        self.settle()
        steps = [entry for entry in self._steps_waiting if entry.number not in self._skipped]
        epochs = self._epochs_waiting
        self._steps_waiting, self._epochs_waiting = [], []
        numbers = [entry.number - bisect_left(self._skipped, entry.number) for entry in steps]
        flat = torch.cat([entry.table for entry in steps + epochs]).cpu().numpy() if steps or epochs else np.empty(0)
        of_steps = flat[: len(StepSum) * len(steps)].reshape(len(steps), len(StepSum), len(self.names))
        for entry, table in zip(steps, of_steps, strict=True):
            if entry.without_gradient:
                table[np.ix_(list(GRADIENT_POWER), list(entry.without_gradient))] = np.nan
        of_epochs = flat[len(StepSum) * len(steps) :].reshape(len(epochs), len(EpochSum), len(self.names))
        of_ends = [entry.number for entry in epochs]
        return self._to_host(steps, numbers, of_steps), self._to_host(epochs, of_ends, of_epochs)

    @torch.no_grad()
    def end_epoch(self) -> None:
        """Measure the way from the epoch's start to the weights as they are; the next step begins another epoch."""
        self.settle()
        if self._epoch_start is None or not self.epoch_steps:
            return
        table = add_up(self._sums.epoch(self._epoch_start), self._shard_groups)
        ended = _Measured(self.steps - 1, self.epoch, self._last_groups, table, steps=self.epoch_steps)
        self._epochs_waiting.append(ended)
        self._in_epoch = False
        self.epoch += 1

    @torch.no_grad()
    def advance(self, steps: int) -> None:
        """Count `steps` that are about to be made by other means than the optimizer's `step`; none is measured."""
        self._begin_epoch()
        self._attempts += steps
        self._keep_groups()

    def state(self) -> dict[str, Any]:
        """The counters, and in the middle of an epoch the weights at its start."""
        self.settle()
        # Parts of a weight would have to come back to the process that they are from; after a resumption in the middle
        # of an epoch its angle is that of the rest.
        whole = self._in_epoch and not self._shard_groups
        start = self._sums.as_tensors(self._epoch_start) if whole else None
        return {
            "steps": self.steps,
            "epoch": self.epoch,
            "epoch_first_step": self._epoch_first_step,
            "epoch_start": start,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Resume counting from `state`; what is measured and not yet taken is dropped."""
        self._attempts, self._skipped, self._flags = int(state["steps"]), [], []
        self._steps_waiting, self._epochs_waiting = [], []
        self._keep_groups()
        self.epoch, self._epoch_first_step = int(state["epoch"]), int(state["epoch_first_step"])
        start = state["epoch_start"]
        self._in_epoch = start is not None
        if start is not None:
            self._epoch_start = self._sums.from_tensors(start)

    # The two hooks are called at every step, few of which are measured: on the others they do next to nothing.

    def _before(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
        now = [*_iterate_parameters(optimizer)]
        # By identity, and in C: this is done at every step.
        if len(now) != len(self._known) or not all(map(is_, now, self._known)):
            difference = f"has {len(now)} parameters and had {len(self._known)}"
            if len(now) == len(self._known):
                difference = "has other parameters than it had"
            raise ParametersChangedError(
                f"{type(optimizer).__name__} {difference} when the monitor was made: close the monitor and make a new "
                "one once all parameters are there."
            )
        flag = getattr(optimizer, "found_inf", None)
        if flag is not None:
            self._flags.append((self._attempts, flag.detach().reshape(())))
        self._begin_epoch()
        self._measured_gradient = False
        if not self._should_measure(self):
            return None
        replaced = measure_in_closure(args, kwargs, self._measure_gradient)
        if replaced is None:
            self._measure_gradient()
        return replaced

    def _after(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self._keep_groups()
        if self._measured_gradient:
            self._measure_change()
            self._measured_gradient = False
        self._attempts += 1
        self._on_step(self)

    def _begin_epoch(self) -> None:
        """Keep the weights as they are, unless an epoch is under way."""
        if not self._in_epoch:
            with torch.no_grad():
                self._epoch_start = self._sums.copy(self._epoch_start)
            self._epoch_first_step = self.steps
            self._in_epoch = True

    @torch.no_grad()
    def _measure_gradient(self) -> None:
        gradients = read_gradients(self._parameters)
        # Only buffers that weight decay passes through enter h; Muon has others of the same name.
        buffers = self._buffers.now() if self.kind in COUPLED else []
        if self._shard_groups:
            gradients = [None if g is None else local_part(g) for g in gradients]
            buffers = [None if v is None else local_part(v) for v in buffers]
        self._before_step = self._sums.before(self._before_step, gradients, buffers)
        self._without_gradient = tuple(compress(count(), map(is_, gradients, repeat(None))))
        self._scale = getattr(self.optimizer, "grad_scale", None)
        self._measured_gradient = True

    @torch.no_grad()
    def _measure_change(self) -> None:
        table = add_up(self._sums.step(self._before_step), self._shard_groups)
        if self._scale is not None:
            unscale_(table, self._scale)
        measured = _Measured(self._attempts, self.epoch, self._last_groups, table, self._without_gradient)
        self._steps_waiting.append(measured)

    def _keep_groups(self) -> None:
        """Keep the groups' settings: a scheduler may have moved on to the next step's when the loop ends the epoch."""
        self._last_groups = [copy_group(group) for group in self.optimizer.param_groups]

    def _to_host(self, measured: Sequence[_Measured], numbers: list[int], table: Floats) -> Measurements:
        return Measurements(
            step=numbers,
            epoch=[entry.epoch for entry in measured],
            steps=[entry.steps for entry in measured],
            groups=[tuple(group_settings(self.kind, group).on_host() for group in entry.groups) for entry in measured],
            table=table,
        )


def _iterate_parameters(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    return chain.from_iterable(map(itemgetter("params"), optimizer.param_groups))
