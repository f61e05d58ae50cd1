"""`lanes`: many trainings of one network at once, each with the result it would have alone.

Every lane is an ordinary `Training`, with its own recipe, seeds, data subset, schedule, monitor and folder. Lanes share
nothing but the moment at which their gradients are computed, so a lane that diverges ends alone, and the next config
takes its place at once. On a GPU results agree up to rounding: norms add up in an order that the number of lanes
decides.
"""

from __future__ import annotations

import gc
import os
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from isogon.errors import ArgumentError, check_whole
from isogon.lab.gpu._graphed import GraphedTraining
from isogon.lab.gpu._stacked import backward_together
from isogon.lab.run import Config, Run, Training, default_device, run_folder, train

Batch = tuple[Tensor, Tensor]
#: called after each epoch of a lane with its config and the row
LaneReport = Callable[[Config, Mapping[str, Any]], None]

#: lanes at once by device: beyond that a step gains nothing more (benchmarks/gpu_lanes.py)
AT_ONCE = {"cpu": 16, "cuda": 8}
# Networks with more weights than this are fastest six at a time on a GPU: more would evict each other from its cache.
_LARGE, _LARGE_AT_ONCE = 4_000_000, 6
# Seconds between two checkpoints of a lane: on a GPU epochs may be shorter than the writing of one.
_CHECKPOINT_SECONDS = {"cpu": 0.0, "cuda": 60.0}
# Steps that a GPU lane launches before the next one's turn: enough to bridge the end of another's epoch.
_STEPS_AT_ONCE = 16
# Memory of the GPU that is left free: tests at the epochs' ends need some.
_SPARE_BYTES = 2**30
# Freeing memory makes all lanes wait. It is put off, where so many lanes would fit what is free, until so many began.
_PLENTY, _FREED_EVERY = 16, 8
# Streams of lanes that have ended. Libraries keep workspaces for every stream that they have seen (on a large GPU 66 MB
# in all), so the next lanes take the same.
_FREE_STREAMS: dict[torch.device, list[torch.cuda.Stream]] = {}
# Convolutions over more pixels than this are faster one network after the other (benchmarks/lanes.py).
_MOST_PIXELS = 100


def lanes(
    configs: Sequence[Config],
    out: str | os.PathLike[str] | None = None,
    *,
    device: torch.device | str | None = None,
    at_once: int | None = None,
    report: LaneReport | None = None,
) -> list[Run]:
    """Train `configs`, which share network, kind of data and precision, several at once; their runs in order.

    Args:
        out: a folder for the runs' folders, named by `Config.name`; the same call resumes. On a GPU a lane that is
            killed loses what it did in the last minute, elsewhere the epoch under way.
        device: `cuda` where there is one, else `cpu`.
        at_once: lanes that train at the same time.
        report: called after each epoch of a lane.
    """
    configs = list(configs)
    if not configs:
        return []
    check_alike(configs)
    device = torch.device(device or default_device())
    if at_once is not None:
        check_whole("at_once", at_once, cure="count the lanes")
    places = {config.key: run_folder(_place(out, config), config) for config in configs}
    runs = {key: run for key, place in places.items() if (run := Run.read_if_ended(place)) is not None}
    waiting = deque(config for config in configs if config.key not in runs)

    active: dict[str, Training] = {}

    def trainings() -> Iterator[Training]:
        while waiting:
            config = waiting.popleft()
            seconds = _CHECKPOINT_SECONDS[device.type]
            active[config.key] = Training(config, places[config.key], device=device, checkpoint_seconds=seconds)
            yield active[config.key]

    sample = Training(waiting[0]) if waiting else None
    reason = why_one_by_one(sample, device) if sample is not None and len(waiting) > 1 else None
    if reason is not None:
        warnings.warn(f"Lanes train one by one: {reason}.", stacklevel=2)
    # One alone needs no lane on a CPU; on a GPU its steps are recorded all the same.
    if sample is None or reason is not None or (device.type == "cpu" and (sample.is_random or len(waiting) == 1)):
        ended = _train_in_turn(waiting, places, device, report)
    else:
        at_once = min(at_once or _most_at_once(sample, device), len(waiting))
        ended = (_train_stacked if device.type == "cpu" else _train_on_streams)(trainings(), at_once, report)
    try:
        for run in ended:
            runs[run.config.key] = run
            active.pop(run.config.key, None)  # its memory is for the next one
    finally:
        for training in active.values():
            training.close()
    return [runs[config.key] for config in configs]


def _most_at_once(sample: Training, device: torch.device) -> int:
    large = sum(parameter.numel() for parameter in sample.model.parameters()) > _LARGE
    return _LARGE_AT_ONCE if large and device.type == "cuda" else AT_ONCE[device.type]


def _train_in_turn(
    configs: Iterable[Config], places: Mapping[str, Path | None], device: torch.device, report: LaneReport | None
) -> Iterator[Run]:
    """One after another."""
    for config in configs:
        lane_report = None if report is None else partial(report, config)
        yield train(config, places[config.key], device=device, progress=False, report=lane_report)


def _train_stacked(trainings: Iterator[Training], at_once: int, report: LaneReport | None) -> Iterator[Run]:
    """A step of each lane at a time, computed together."""
    active: list[_Lane] = []
    while True:
        active += [_Lane(training, report) for training in islice(trainings, at_once - len(active))]
        if not active:
            return
        batches = [(lane, lane.next_batch()) for lane in active]
        _step_together([(lane.training, batch) for lane, batch in batches if batch is not None])
        for lane, batch in batches:
            if batch is None:
                active.remove(lane)
                yield lane.training.finish()


def _train_on_streams(trainings: Iterator[Training], at_once: int, report: LaneReport | None) -> Iterator[Run]:
    """Each lane CUDA graphs on a stream of its own; the host only launches, some steps of each in turn."""
    active: list[GraphedTraining] = []
    memory = _Memory(at_once)
    more = True
    while True:
        while more and len(active) < at_once and (not active or memory.has_room(active)):
            training = next(trainings, None)
            more = training is not None
            if training is not None:
                active.append(memory.begin(training))
        if not active:
            _free_memory()
            return
        for lane in list(active):
            before = lane.training.epoch
            if not lane.advance(_STEPS_AT_ONCE):
                active.remove(lane)
                memory.release(lane)
                yield lane.finish()
            elif report is not None and lane.training.epoch > before:
                report(lane.training.config, lane.training.history[-1])
        del lane  # with it goes the memory of its graphs


def _free_memory() -> None:
    """Give back the GPU's memory of trainings that have ended, which their own hooks hold."""
    gc.collect()
    torch.cuda.empty_cache()


class _Memory:
    """Starts GPU lanes, `wanted` of them while there is memory for another as large as the largest so far."""

    def __init__(self, wanted: int) -> None:
        self._wanted, self._largest = wanted, 0
        self._since_freed = 0
        self._warned_of_memory = self._warned_of_refusal = False

    def begin(self, training: Training) -> GraphedTraining:
        self._since_freed += 1
        if self._since_freed > _FREED_EVERY or not self._is_plentiful(training.device):
            self._since_freed = 0
            _free_memory()
        before, _ = torch.cuda.mem_get_info(training.device)
        free = _FREE_STREAMS.setdefault(training.device, [])
        stream = free.pop() if free else torch.cuda.Stream(training.device)  # type: ignore[no-untyped-call]
        lane = GraphedTraining(training, stream, self._wanted)
        lane.begin()
        if lane.refused is not None and not self._warned_of_refusal:
            self._warned_of_refusal = True
            reason = f"a step cannot be recorded ({lane.refused})"
            warnings.warn(f"Lanes train step by step and gain nothing: {reason}.", stacklevel=2)
        after, _ = torch.cuda.mem_get_info(training.device)
        self._largest = max(self._largest, before - after)
        return lane

    def _is_plentiful(self, device: torch.device) -> bool:
        """Whether what trainings leave behind can stay for a while."""
        free, _ = torch.cuda.mem_get_info(device)
        return self._largest > 0 and free - _SPARE_BYTES > _PLENTY * self._largest

    def release(self, lane: GraphedTraining) -> None:
        _FREE_STREAMS[lane.training.device].append(lane.stream)

    def has_room(self, active: Sequence[GraphedTraining]) -> bool:
        """For one more beside those that train."""
        device = active[0].training.device
        if self._is_plentiful(device):
            return True
        torch.cuda.empty_cache()
        free, _ = torch.cuda.mem_get_info(device)
        enough = free - _SPARE_BYTES > self._largest
        if not enough and not self._warned_of_memory:
            self._warned_of_memory = True
            warnings.warn(
                f"{len(active)} of {self._wanted} lanes fit the GPU's memory: one takes {self._largest / 2**30:.1f} "
                f"GiB, and {free / 2**30:.1f} GiB are free. The others follow as lanes end; a smaller batch needs "
                "less.",
                stacklevel=2,
            )
        return enough


class _Lane:
    """A training as a stream of batches over all its epochs."""

    def __init__(self, training: Training, report: LaneReport | None) -> None:
        self.training, self._report = training, report
        self._batches: Iterator[Batch] = iter(())
        self._in_epoch = False

    def next_batch(self) -> Batch | None:
        """The next batch, of the next epoch where one has ended; None at the end of the run."""
        batch = next(self._batches, None)
        while batch is None:
            if self._in_epoch:
                self.training.end_epoch()
                self._in_epoch = False
                if self._report is not None:
                    self._report(self.training.config, self.training.history[-1])
            if self.training.ended:
                return None
            self.training.begin_epoch()
            self._in_epoch = True
            self._batches = self.training.batches()
            batch = next(self._batches, None)
        return batch


def _step_together(work: Sequence[tuple[Training, Batch]]) -> None:
    """One step of each training; batches of one size are computed at once."""
    alike: dict[torch.Size, list[tuple[Training, Batch]]] = {}
    for training, batch in work:
        alike.setdefault(batch[0].shape, []).append((training, batch))
    for group in alike.values():
        if len(group) == 1:
            training, batch = group[0]
            training.backward(*batch)
        else:
            backward_together([training for training, _ in group], [batch for _, batch in group])
        for training, _ in group:
            training.step()


def why_one_by_one(training: Training, device: torch.device) -> str | None:
    """Why lanes like `training` are not computed together; None where they are.

    On a CPU networks are stacked where that is possible and faster: small images, or no convolution.
    """
    if device.type != "cpu":
        return None
    if training.is_random:  # lanes that share torch's one generator would not sample what each would alone
        return "the network is random, for example by dropout"
    height, width = training.data.image_size
    if height * width > _MOST_PIXELS and any(isinstance(module, nn.Conv2d) for module in training.model.modules()):
        return f"convolutions over {height}×{width} pixels are faster so on a CPU"
    if training.config.micro_batch is not None:
        return "they add gradients up over micro batches"
    return "stacked networks do not compute in bfloat16" if training.config.precision == "bfloat16" else None


def check_alike(configs: Sequence[Config]) -> None:
    """Refuse configs of different networks, data or precisions."""
    for name in ("net", "net_options", "data", "precision"):
        first = getattr(configs[0], name)
        for config in configs[1:]:
            if getattr(config, name) != first:
                raise ArgumentError(
                    f"configs' {name}", f"the same in all lanes ({first})", getattr(config, name), "use lab.run_all"
                )
    keys = [config.key for config in configs]
    if len(set(keys)) < len(keys):
        twice = next(config for config in configs if keys.count(config.key) > 1)
        raise ArgumentError("configs", "all different", twice.name, "give each its own seed")


def _place(out: str | os.PathLike[str] | None, config: Config) -> Path | None:
    return None if out is None else Path(out) / config.name
