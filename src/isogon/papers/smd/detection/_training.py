"""Training a detector under the multi-stage schedule, with or without rescaled weights, and watching its layers turn.

The loop uses only what torchvision's detectors promise: called with pictures and targets in training mode a model
returns losses by name, called with pictures in evaluation mode the objects that it detects in each.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from isogon import schedules
from isogon.dynamics import Monitor, RunFolder, read
from isogon.files import remove_leftovers
from isogon.lab import CHECKPOINT, load_checkpoint, save_checkpoint
from isogon.optim import RescaleOnDecay, drive, split_groups
from isogon.papers.smd.detection._data import CocoPart, Target
from isogon.papers.smd.detection._network import Backbone
from isogon.papers.smd.detection._weights import normalised_map
from isogon.recipe import Recipe
from isogon.schedules import Schedule

Batch = tuple[list[Tensor], list[Target]]


@dataclass(frozen=True)
class DetectorSetting:
    """What is trained at a scale, and for how long.

    Args:
        recipe: learning rate, weight decay, momentum and batch size; `samples` are the pictures with objects.
        drops: steps at which the rate is divided by 10.
        warm_up: first steps over which the rate rises from a thousandth.
        period: steps between two points of a curve; it divides all of the above but the warm-up.
        drawn: training and test pictures to draw; None for those of MS-COCO.
        side: of the pictures that are drawn.
        loaders: processes that read pictures.
    """

    recipe: Recipe
    backbone: Backbone
    steps: int
    drops: tuple[int, ...]
    period: int
    monitor_every: int
    seeds: int = 1
    warm_up: int = 0
    drawn: tuple[int, int] | None = None
    side: int = 0
    loaders: int = 0

    @property
    def schedule(self) -> Schedule:
        stages = schedules.step_decay(self.recipe.lr, self.recipe.weight_decay, self.drops, factor=10)
        return schedules.warmup(stages, self.warm_up, start=1e-3) if self.warm_up else stages

    @property
    def key(self) -> str:
        """The same for the same trainings, whatever the speed of reading and the number of seeds."""
        fields = {name: value for name, value in vars(self).items() if name not in ("loaders", "seeds")}
        return hashlib.sha256(repr(sorted(fields.items())).encode()).hexdigest()[:8]


@dataclass(frozen=True)
class Trained:
    """How the weights of a training moved: the monitor's records, and whether it came to its end."""

    records: pd.DataFrame
    status: Literal["finished", "diverged"]


@dataclass(frozen=True)
class Batches:
    """The pictures of each step from `start` to `steps`: all of them once per epoch, in an order from the seed."""

    samples: int
    batch_size: int
    seed: int
    start: int
    steps: int

    def __len__(self) -> int:
        return self.steps - self.start

    def __iter__(self) -> Iterator[list[int]]:
        per_epoch = self.samples // self.batch_size
        order: list[int] = []
        for step in range(self.start, self.steps):
            epoch, place = divmod(step, per_epoch)
            if not order or place == 0:
                generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
                order = torch.randperm(self.samples, generator=generator).tolist()
            yield order[place * self.batch_size : (place + 1) * self.batch_size]


def train_detector(
    model: nn.Module,
    data: CocoPart,
    setting: DetectorSetting,
    *,
    rescaled: bool,
    seed: int,
    device: torch.device | str = "cpu",
    folder: Path | None = None,
) -> Trained:
    """Train `model`, which is changed, to the end of the schedule.

    With `rescaled` the invariant weights are divided by 10^(1/4) at each drop. A `folder` gets the records; the same
    call resumes a training that stopped there from its last period; flips and regions are then sampled again.
    """
    device = torch.device(device)
    with torch.random.fork_rng(devices=[device.index or 0] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        return _train_seeded(model.to(device).train(), data, setting, rescaled, seed, device, folder)


def _train_seeded(
    model: nn.Module,
    data: CocoPart,
    setting: DetectorSetting,
    rescaled: bool,
    seed: int,
    device: torch.device,
    folder: Path | None,
) -> Trained:
    recipe = setting.recipe
    batches = Batches(len(data), recipe.batch_size, seed, 0, setting.steps)
    example = _to_device(_as_lists([data[place] for place in next(iter(batches))]), device)
    scale_map = normalised_map(model, lambda copied: copied(*example))
    optimizer = torch.optim.SGD(split_groups(model, scale_map), lr=recipe.lr, momentum=recipe.momentum)
    driver = drive(optimizer, setting.schedule)
    parts: dict[str, Any] = {"model": model, "optimizer": optimizer, "driver": driver}
    if rescaled:  # before the monitor, which then sees the weights that are stepped
        parts["rescaling"] = RescaleOnDecay(optimizer, model=model, scale_map=scale_map)
    parts["monitor"] = monitor = Monitor(
        model,
        optimizer,
        batch_size=recipe.batch_size,
        samples=len(data),
        scale_map=scale_map,
        every_steps=setting.monitor_every,
        sinks=[RunFolder(folder)] if folder else [],
    )
    monitor.advance(0)  # epochs are the periods of the loop below
    step = _resume(folder / CHECKPOINT, parts, seed, device) if folder else 0
    losses: list[float] = []
    with monitor:
        for batch in _loader(data, replace(batches, start=step), setting.loaders):
            loss = torch.stack(list(model(*_to_device(batch, device)).values())).sum()
            losses.append(float(loss.detach()))
            if not math.isfinite(losses[-1]):
                break
            optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(loss)
            optimizer.step()
            driver.step()
            step += 1
            if step % setting.period == 0:
                monitor.end_epoch(train_loss=sum(losses) / len(losses))
                losses.clear()
                if folder:
                    save_checkpoint(
                        folder / CHECKPOINT,
                        {"step": step, **{name: part.state_dict() for name, part in parts.items()}},
                    )
    records = read(folder) if folder else monitor.records
    return Trained(records, "finished" if step == setting.steps else "diverged")


def _resume(checkpoint: Path, parts: Mapping[str, Any], seed: int, device: torch.device) -> int:
    """Restore the parts from the checkpoint; returns the step to resume from."""
    if not checkpoint.exists():
        return 0
    remove_leftovers(checkpoint.parent)
    state = load_checkpoint(checkpoint, device)
    for name, part in parts.items():
        part.load_state_dict(state[name])
    torch.manual_seed(seed + 1_000_003 * int(state["step"]))
    return int(state["step"])


def _loader(data: CocoPart, batches: Batches, processes: int) -> Iterable[Batch]:
    return DataLoader(data, batch_sampler=batches, collate_fn=_as_lists, num_workers=processes)


def _as_lists(samples: Sequence[tuple[Tensor, Target]]) -> Batch:
    """Pictures of a batch differ in size."""
    return [image for image, _ in samples], [target for _, target in samples]


def _to_device(batch: Batch, device: torch.device) -> Batch:
    images, targets = batch
    moved = [{name: value.to(device) for name, value in target.items()} for target in targets]
    return [image.to(device) for image in images], moved
