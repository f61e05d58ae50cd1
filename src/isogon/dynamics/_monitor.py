"""`Monitor`: one line in a training script, and every layer's motion is recorded beside what theory predicts."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import nn

from isogon.dynamics.findings import HAS_NO_LAW, Finding, findings
from isogon.dynamics.measure import (
    Settings,
    Watch,
    WatchPart,
    check_model,
    choose,
    describe_difference,
    group_settings,
    is_sharded,
    merge_parts,
    optimizer_kind,
    refuse_flat_shards,
    shard_groups,
    trained_parameters,
)
from isogon.dynamics.record import Delivery, RowMaker, Sink, join_tables, table
from isogon.errors import ArgumentError, IsogonError, check_whole, first_line
from isogon.recipe import Recipe
from isogon.symmetry import ScaleMap, Symmetries

# Measured steps left on the device before they are fetched all the same, for epochs that hardly end.
_MOST_WAITING = 1000
# Seconds after which rows are sent to the sinks though the epoch has not ended.
_FLUSH_SECONDS = 60.0
# The share of a run that looking for findings may take.
_MOST_OF_THE_TIME = 0.01
_SHARDED = (
    "a model cannot be followed once it is sharded (call isogon.check and isogon.symmetries before fully_shard, and "
    "give the monitor what they return as scale_map= and symmetries=)"
)


class Monitor:
    """Measures, through the optimizer's own step hooks, how fast each weight turns.

    Args:
        model: its parameters are watched; a wrapped one (DDP, torch.compile) is fine, and so is one sharded by
            `fully_shard`: then every process makes a monitor, and calls `end_epoch` and `close` like the others.
        optimizer: one, or a list of them; a step is then a step of each.
        batch_size: samples of one optimizer step, over all processes and accumulated gradients.
        samples: training samples of an epoch; N/B steps end an epoch unless the loop calls `end_epoch`.
        scale_map: which parameters are invariant, from `isogon.check`.
        symmetries: which groups of them are, from `isogon.symmetries`: each becomes a layer (`group:residual` …).
        inputs: an example of the model's input, to run both on: a tensor, a tuple, or a mapping of named arguments.
            Matrices that are not invariant are measured without a law. With neither, every tensor of two or more
            dimensions is watched, and those whose radial leak is nil in the first steps pass for invariant. Where no
            weight and no group is invariant, or the model cannot be followed, all are measured without predictions,
            and `silence` is the reason.
        every_steps: measure one step in so many; an epoch's last step always. The others cost next to nothing.
        sinks: each is called with the new rows (a pandas table, in the schema of `dynamics.SCHEMA`) when an epoch ends,
            on `flush` and on `close`. A sink may also have `open(run)`, called at once with a mapping (`recipe`,
            `layers`), `end_epoch(row)`, called with the row of the second table, `flush()`, called after those, and
            `close()`. `dynamics.RunFolder` is one. A sink that raises gives a warning and does not end the training:
            what it did not take waits, and is offered again.
        flush_epochs: False calls the sinks on `flush` and `close` only, not at the end of each epoch: where epochs take
            a fraction of a second, making the rows of each would take longer.
        strict_sinks: True raises what a sink raises, for loops that must not continue past a row that was not written.
        on_finding: called with each new `Finding` when an epoch ends, for example `print`.

    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.Flatten(), nn.LazyLinear(10))
    >>> x, y = torch.randn(16, 3, 6, 6), torch.randint(0, 10, (16,))
    >>> _ = model(x)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    >>> with Monitor(model, optimizer, batch_size=16, samples=64, every_steps=1) as monitor:
    ...     for _ in range(8):
    ...         optimizer.zero_grad()
    ...         nn.functional.cross_entropy(model(x), y).backward()
    ...         optimizer.step()
    >>> monitor.records.query("layer == '0.weight'").step.tolist()
    [0, 1, 2, 3, 4, 5, 6, 7]
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
        *,
        batch_size: int,
        samples: int,
        scale_map: ScaleMap | None = None,
        symmetries: Symmetries | None = None,
        inputs: Any = None,
        every_steps: int = 10,
        sinks: Sequence[Sink] = (),
        flush_epochs: bool = True,
        strict_sinks: bool = False,
        on_finding: Callable[[Finding], Any] | None = None,
    ) -> None:
        self.batch_size = check_whole("batch_size", batch_size, cure="count the samples of one optimizer step")
        self.samples = check_whole("samples", samples, cure="count the training samples")
        self.every_steps = check_whole("every_steps", every_steps, cure="1 measures every step")
        optimizers = _parts_of(optimizer if isinstance(optimizer, Sequence) else [optimizer])
        refuse_flat_shards(model, optimizers)
        parameters = trained_parameters(model, optimizers)
        #: True on the one process whose monitor makes rows and has them written
        self.writes = _rank() == 0
        #: False on the processes that only train; those that hold parts of the weights measure as well
        self.active = self.writes or any(map(is_sharded, parameters.values()))
        self._delivery = Delivery(sinks if self.writes else (), strict=strict_sinks)
        self._flush_epochs = flush_epochs
        # Processes that share weights measure together, and their clocks differ: those leave it to the epoch's end.
        self._flush_within = flush_epochs and not any(map(is_sharded, parameters.values()))
        self._last_flush = time.monotonic()
        # Findings look at all records, which takes longer as they grow: not before this time again.
        self._next_findings = 0.0
        #: why theory predicts nothing for this run; None where it does, or where that is left to the radial leak
        self.silence: str | None = None
        #: remarks on single layers, by their names: why a group has no law, for example
        self.notes: dict[str, str] = {}
        #: what is known of the run besides its records, as it is in run.json and as `findings` takes it
        self.about: dict[str, Any] = {}
        self._on_finding = on_finding
        self._reported: set[tuple[str, str | None, float | None]] = set()
        self._by_hand = False
        self._tables: list[pd.DataFrame] = []
        self._epochs: dict[int, dict[str, Any]] = {}
        self._pending: list[WatchPart] = []
        self._watches: list[Watch] = []
        self._places: dict[Watch, NDArray[np.int64]] = {}
        #: of the watches when the monitor was closed
        self._states: list[dict[str, Any]] = []
        if not self.active:
            return
        if scale_map is None and symmetries is None and inputs is not None:
            # To export a model that is sharded fails, and leaves it in a state in which it cannot be trained.
            sharded = any(map(is_sharded, model.parameters()))
            scale_map, symmetries, self.silence = (None, None, _SHARDED) if sharded else check_model(model, inputs)
        tensors = choose(parameters, scale_map, symmetries, silence=self.silence)
        self.silence = tensors.silence
        self._maker = RowMaker(tensors, steps_per_epoch=self.samples / self.batch_size)
        for stepping in optimizers:
            self._add_watches(stepping, {name: parameters[name] for name in tensors.names}, tensors.names)
        settings = _read_settings(optimizers, parameters)
        unequal = {
            layer: describe_difference({tensors.names[place]: settings[tensors.names[place]] for place in places})
            for layer, places in tensors.groups.items()
        }
        self.notes = {
            **tensors.notes,
            **{layer: f"{HAS_NO_LAW}, since its members have {how}" for layer, how in unequal.items() if how},
        }
        self._warn_without_law()
        recipe = _recipe_fields(optimizers[0], self.batch_size, self.samples)
        self.about = {
            "recipe": recipe,
            "layers": self._maker.layers,
            "silence": self.silence,
            "notes": self.notes,
            "lawless": self._maker.lawless,
            "guessed": not tensors.mapped and self.silence is None,
            "resolutions": _read_resolutions({name: parameters[name] for name in tensors.names}),
        }
        self._delivery.open(self.about)

    @property
    def records(self) -> pd.DataFrame:
        """All rows so far, one per measured step and layer; reading it waits for the device."""
        self._fetch()
        self._tables = [join_tables(self._tables)]
        return self._tables[0].copy()

    @property
    def epochs(self) -> pd.DataFrame:
        """One row per epoch: its number, its last step, and what `end_epoch` was given."""
        rows = [self._epochs[epoch] for epoch in sorted(self._epochs)]
        return pd.DataFrame(rows if rows else {"epoch": [], "step": []}).astype({"epoch": "int64", "step": "int64"})

    def end_epoch(self, **metrics: float) -> None:
        """End the epoch here, with its losses, accuracies, images/s … for `.epochs`.

        From the first call on, epochs end here alone and no longer after N/B steps. A call right after an epoch ended
        by itself only adds the metrics.
        """
        if not self.active:
            return
        self._by_hand = True
        for watch in self._watches:
            watch.end_epoch()
        if not any(watch.epoch for watch in self._watches):
            raise IsogonError("end_epoch must come after a step, and none was made: call optimizer.step() first.")
        # NumPy's scalars and tensors of one element become numbers that a checkpoint and a Parquet file can hold.
        self._close_epoch({name: value.item() if hasattr(value, "item") else value for name, value in metrics.items()})

    @property
    def unmeasured_steps_ahead(self) -> int:
        """Steps before the next that is to be measured, the last of an epoch aside."""
        if not self._watches:
            return sys.maxsize
        return min(-watch.steps % self.every_steps for watch in self._watches)

    def advance(self, steps: int) -> None:
        """Count `steps` that are about to be made without the optimizer's `step`, for example by a CUDA graph.

        Call it before them. They are not measured, but the epoch's angle takes them in; from the first call on, epochs
        end by `end_epoch` alone.
        """
        self._by_hand = True
        for watch in self._watches:
            watch.advance(steps)

    def flush(self) -> None:
        """Send the rows that are ready to the sinks now, and those of epochs that have ended."""
        self._fetch()
        self._delivery.flush()
        self._last_flush = time.monotonic()

    def close(self) -> None:
        """Remove the hooks, send the last rows to the sinks and close those; `.records` can still be read.

        What a sink did not take before is offered once more; a warning lists what is missing then.
        """
        watches, self._watches = self._watches, []
        if not watches:
            self._delivery.close()  # what is complete stays; a sink that was not may have room now
            return
        self._fetch(watches, last=True)
        self._states = [watch.state() for watch in watches]
        for watch in watches:
            watch.close()
        self._delivery.close()
        self._report_findings()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs to continue measuring: counters, running means, the equilibrium of each layer.

        A monitor that was closed has the state of that moment. Rows are not in it; they are in the sinks. In the middle
        of an epoch the weights at its start are. It holds tensors and plain types alone, so that `torch.load` reads it
        with `weights_only=True`.
        """
        if not self.active:
            return {}
        self._fetch()
        return {
            "by_hand": self._by_hand,
            "layers": list(self._maker.layers),
            "epochs": {epoch: dict(row) for epoch, row in self._epochs.items()},
            "watches": [watch.state() for watch in self._watches] or self._states,
            "rows": self._maker.state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from `state_dict()` of a monitor of the same model and optimizers."""
        if not self.active or not state:
            return
        if list(state["layers"]) != self._maker.layers or len(state["watches"]) != len(self._watches):
            raise ArgumentError(
                "state",
                "of a monitor that watches the same layers",
                list(state["layers"]),
                "make the monitor with the model, optimizers and scale map of the first run",
            )
        self._by_hand = bool(state["by_hand"])
        self._epochs = {int(epoch): dict(row) for epoch, row in state["epochs"].items()}
        self._maker.load_state(state["rows"])
        for watch, of_watch in zip(self._watches, state["watches"], strict=True):
            watch.load_state(of_watch)

    def _add_watches(
        self, optimizer: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter], names: Sequence[str]
    ) -> None:
        """One watch for each device, type and way of sharding of which `optimizer` has some of `parameters`."""
        stepped = {id(p) for group in optimizer.param_groups for p in group["params"]}
        alike: dict[tuple[Any, ...], dict[str, nn.Parameter]] = {}
        for name, parameter in parameters.items():
            if id(parameter) in stepped:
                kind = (parameter.device, parameter.dtype, shard_groups(parameter))
                alike.setdefault(kind, {})[name] = parameter
        for tensors in alike.values():
            watch = Watch(optimizer, tensors, should_measure=self._should_measure, on_step=self._end_step)
            self._watches.append(watch)
            self._places[watch] = np.array([names.index(name) for name in tensors])

    def _last_step(self, watch: Watch) -> int | None:
        """The last step of the epoch under way; None where the loop decides."""
        if self._by_hand:
            return None
        # Whole numbers, so that an epoch of 390.625 steps neither gains nor loses one over the years.
        return -(-(watch.epoch + 1) * self.samples // self.batch_size) - 1

    def _should_measure(self, watch: Watch) -> bool:
        last = self._last_step(watch)
        if last is not None and watch.steps >= last:
            watch.settle()
            if watch.steps == last:
                return True
        return watch.steps % self.every_steps == 0

    def _end_step(self, watch: Watch) -> None:
        last = self._last_step(watch)
        if last is not None and watch.steps > last:
            watch.end_epoch()
            if all(other.epoch >= watch.epoch for other in self._watches):
                self._close_epoch({})
        elif self._flush_within and watch.waiting and time.monotonic() - self._last_flush > _FLUSH_SECONDS:
            # An epoch may be all of a run: what it has measured must not wait for its end.
            self.flush()
            self._report_findings()
        elif watch.waiting >= _MOST_WAITING:
            self._fetch()

    def _close_epoch(self, metrics: Mapping[str, float]) -> None:
        epoch = max(watch.epoch for watch in self._watches) - 1
        step = max(watch.steps for watch in self._watches) - 1
        row = {"epoch": epoch, "step": step, **self._epochs.get(epoch, {}), **metrics}
        self._epochs[epoch] = row
        self._delivery.add_epoch(row)
        if self._flush_epochs:
            self.flush()
        self._report_findings()

    def _fetch(self, watches: Sequence[Watch] | None = None, *, last: bool = False) -> None:
        """Turn what the watches measured into rows; a step that some optimizer still has to make waits for it."""
        if not self.active:
            return
        watches = self._watches if watches is None else watches
        if not watches:
            return
        parts = self._pending + [WatchPart(self._places[w], w.group_of, *w.take()) for w in watches]
        self._pending = []
        behind = min((watch.steps for watch in watches), default=0)
        if not last and max((watch.steps for watch in watches), default=0) == behind + 1:
            halves = [part.split(behind) for part in parts]
            parts, self._pending = [early for early, _ in halves], [late for _, late in halves]
        if not self.writes:
            return
        chunk = merge_parts(parts, len(self._maker.watched.names))
        if len(chunk.step):
            # A run that has overflowed has rows of infinities and NaN.
            with np.errstate(all="ignore"):
                rows = table(self._maker.rows(chunk))
            self._tables.append(rows)
            self._delivery.add_rows(rows)

    def _report_findings(self) -> None:
        """Call `on_finding` with what the records call for by now and have not called for before."""
        started = time.monotonic()
        if self._on_finding is None or not self.writes or (self._watches and started < self._next_findings):
            return
        recipe = self.about["recipe"]
        known = None if recipe is None else Recipe(**recipe)
        under_way = bool(self._watches)
        now = findings(self.records, known, about=self.about, epochs=self.epochs, under_way=under_way)
        self._next_findings = time.monotonic() + (time.monotonic() - started) / _MOST_OF_THE_TIME
        for finding in now:
            if finding.key not in self._reported:
                self._reported.add(finding.key)
                try:
                    self._on_finding(finding)
                except Exception as error:  # the training is worth more than the message
                    reason = f"{type(error).__name__}: {first_line(error)}"
                    warnings.warn(f"on_finding raised ({reason}) and is not called again.", stacklevel=3)
                    self._on_finding = None
                    return

    def _warn_without_law(self) -> None:
        if not self.writes:
            return
        if self.silence is not None:
            warnings.warn(f"Angles are measured without a law: {self.silence}.", stacklevel=3)
            return
        strangers = sorted({type(watch.optimizer).__name__ for watch in self._watches if watch.kind is None})
        if strangers:
            warnings.warn(
                f"No law is known for {', '.join(strangers)}: its weights are measured, predictions stay empty.",
                stacklevel=3,
            )


def _parts_of(optimizers: Iterable[torch.optim.Optimizer]) -> list[torch.optim.Optimizer]:
    """The optimizers that step themselves: the `parts` of one that is made of others, as `optim.MuonWithAdamW` is."""
    return [part for optimizer in optimizers for part in getattr(optimizer, "parts", (optimizer,))]


def _rank() -> int:
    distributed = torch.distributed
    return distributed.get_rank() if distributed.is_available() and distributed.is_initialized() else 0


def _read_settings(
    optimizers: Sequence[torch.optim.Optimizer], parameters: Mapping[str, nn.Parameter]
) -> dict[str, Settings]:
    """The settings of each parameter, at the rates that schedules start from, since a warm-up begins at 0."""
    settings = {
        id(p): group_settings(optimizer_kind(optimizer), {**group, "lr": group.get("initial_lr", group["lr"])})
        for optimizer in optimizers
        for group in optimizer.param_groups
        for p in group["params"]
    }
    return {name: settings[id(parameter)] for name, parameter in parameters.items()}


def _read_resolutions(parameters: Mapping[str, nn.Parameter]) -> dict[str, float]:
    """For weights in half precision the angle by which rounding alone turns them, in radians.

    Rounding moves each number by up to half a spacing, which lies between ε/2 and ε of it: 0.2 ε root mean square.
    """
    kinds = {name: parameter.dtype for name, parameter in parameters.items()}
    return {name: 0.2 * torch.finfo(kind).eps for name, kind in kinds.items() if kind.itemsize < 4}


def _recipe_fields(optimizer: torch.optim.Optimizer, batch_size: int, samples: int) -> dict[str, Any] | None:
    """The recipe that the optimizer is trained with, None where isogon has no recipe for it.

    Where parameter groups differ (layer-wise rates) it is that of the group with the most weights.
    """
    sizes = [sum(p.numel() for p in group["params"]) for group in optimizer.param_groups]
    for group in (None, sizes.index(max(sizes))):
        try:
            return Recipe.from_optimizer(optimizer, batch_size=batch_size, samples=samples, group=group).to_dict()
        except ArgumentError:
            continue
    return None
