"""`Training`: one training in progress, from first weights or a checkpoint to its result."""

from __future__ import annotations

import io
import math
import time
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from isogon.dynamics import Monitor, RunFolder
from isogon.errors import ArgumentError
from isogon.files import remove_leftovers, write_json, write_whole
from isogon.lab.data import Dataset, load
from isogon.lab.run import _checkpoints as checkpoints
from isogon.lab.run._augment import find_augmentation, normalise
from isogon.lab.run._batch_order import epoch_of, generator
from isogon.lab.run._config import Config
from isogon.lab.run._distributed import Ranks
from isogon.lab.run._divergence import is_stuck
from isogon.lab.run._evaluation import evaluate, loss_of, predict_classes
from isogon.lab.run._k_step_angles import Turns
from isogon.lab.run._networks import build, is_random, scale_map_of, symmetries_of
from isogon.lab.run._optimizers import make_optimizer, parameter_groups
from isogon.lab.run._run import CHECKPOINT, CONFIG, PREDICTIONS, RESULT, SNAPSHOT, STOP, WEIGHTS, Run
from isogon.lab.run._weight_average import WeightAverage
from isogon.optim import drive, split_groups
from isogon.schedules import Balanced, Exponential, from_name

_TYPES = {"float32": torch.float32, "bfloat16": torch.float32, "float64": torch.float64}


class EpochTotal(IntEnum):
    """Places in `Training.sums`; the kernel of `lab/gpu/fused/_loss.py` adds to the same ones."""

    LOSS = 0
    RIGHT = 1
    LABELS = 2


class Training:
    """Network, optimizer, schedule, monitor and history of one run, and the pieces of its loop:

        while not training.ended:
            training.begin_epoch()
            for batch in training.batches():
                training.backward(*batch)
                training.step()
            training.end_epoch()
        run = training.finish()

    With a `folder`, `end_epoch` leaves records and a checkpoint there (every `checkpoint_every` epochs, and no sooner
    than `checkpoint_seconds` after the last), and a training made in it again resumes there. All that is random follows
    from the config's seeds and the epoch, so that it ends as if it had never stopped.
    """

    def __init__(
        self,
        config: Config,
        folder: Path | None = None,
        *,
        device: torch.device | str = "cpu",
        ranks: Ranks | None = None,
        checkpoint_every: int = 1,
        checkpoint_seconds: float = 0.0,
    ) -> None:
        self.config, self.folder, self.device = config, folder, torch.device(device)
        self.ranks = ranks or Ranks()
        self.ranks.check(config)
        self._checkpoint_every, self._checkpoint_seconds = checkpoint_every, checkpoint_seconds
        self._last_checkpoint = time.monotonic()
        self.data = _on_device(_load(config), self.device)
        self.augmentation = find_augmentation(config.augmentation)
        self.dtype = _TYPES[config.precision]
        # The layout that tensor cores take as it is.
        tensor_cores = config.precision == "bfloat16" or self.device.type == "cuda"
        self._layout = torch.channels_last if tensor_cores else torch.contiguous_format
        self.model = build(config, self.data)
        #: whether the network is random, for example by dropout
        self.is_random = is_random(config, self.data)
        self.model.to(self.device, self.dtype)
        if tensor_cores:
            self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.network = self.ranks.wrap(self.model)
        schedule = from_name(
            config.schedule, config.recipe, epochs=config.epochs, steps_per_epoch=config.steps_per_epoch
        )
        for_invariant = isinstance(schedule, Exponential | Balanced)
        scale_map = scale_map_of(config, self.data) if config.monitor_every or for_invariant else None
        if for_invariant:
            if scale_map is None:
                rule = "ordinary for a network of which isogon.check cannot tell the invariant weights"
                raise ArgumentError("schedule", rule, config.schedule, "for example step")
            self.optimizer = make_optimizer(split_groups(self.model, scale_map), config.recipe)
            self.driver = drive(self.optimizer, schedule, model=self.model, scale_map=scale_map)
        else:
            self.optimizer = make_optimizer(parameter_groups(self.model, config), config.recipe)
            self.driver = drive(self.optimizer, schedule)
        self.average = WeightAverage(self.model, config.average) if config.average else None
        self._turns = Turns(self.model, config.turns)
        # Held from here on; an error before leaves the folder free for the next try.
        self._lock = checkpoints.FolderLock(folder) if folder is not None and self.ranks.leads else None
        self._writer = RunFolder(folder, name=config.name) if folder and self.ranks.leads else None
        self.monitor: Monitor | None = None
        if config.monitor_every:
            self.monitor = Monitor(
                self.model,
                self.optimizer,
                batch_size=config.recipe.batch_size,
                samples=config.recipe.samples,
                scale_map=scale_map,
                symmetries=symmetries_of(config, self.data),
                every_steps=config.monitor_every,
                sinks=[self._writer] if self._writer else [],
                flush_epochs=False,
                strict_sinks=True,
            )
        elif self._writer:
            self._writer.open({"recipe": config.recipe.to_dict(), "layers": []})
        #: epochs ended
        self.epoch = 0
        #: one row per epoch
        self.history: list[dict[str, Any]] = []
        self.diverged = False
        #: of the epoch under way, see `EpochTotal`
        self.sums = torch.zeros(len(EpochTotal), dtype=torch.float64, device=self.device)
        self._started = 0.0
        try:
            self._resume()
        except BaseException:
            self.close()
            raise

    @property
    def ended(self) -> bool:
        return self.diverged or self.epoch >= self.config.epochs or self._stopped

    @property
    def _stopped(self) -> bool:
        """Whether the folder holds `stop`; not under several ranks, which might not see it at the same moment."""
        if self.folder is None or self.ranks.size > 1 or self.epoch == 0:
            return False
        return (self.folder / STOP).exists()

    def begin_epoch(self) -> None:
        #: the samples of the epoch, in order
        self.plan = epoch_of(self.config, self.epoch, device=self.device)
        if self.monitor is not None:
            self.monitor.advance(0)  # an epoch begins here, and ends with this loop's
        self._turns.begin_epoch()
        self.sums.zero_()
        self._started = time.perf_counter()
        if self.is_random:
            purpose = f"network, rank {self.ranks.rank}"
            torch.manual_seed(generator(self.config.seed, purpose, self.epoch).initial_seed())

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Samples and labels of each step of the epoch in progress; under several ranks, this one's part."""
        for places, drawn in self.plan.batches():
            yield self.inputs(self.ranks.part(places), self.ranks.part(drawn))

    def inputs(self, places: Tensor, drawn: Tensor) -> tuple[Tensor, Tensor]:
        """Samples, augmented by `drawn`, and labels of the training samples at `places`."""
        images = self.augmentation.apply(self.data.train_x[places], drawn)
        return self.prepare(images), self.data.train_y[places]

    def prepare(self, images: Tensor) -> Tensor:
        """Raw pixels, or bytes, as the network takes them."""
        if self.data.is_text:
            return images.long()
        values = normalise(images, self.data.mean, self.data.std, self.dtype)
        return values.contiguous(memory_format=self._layout) if values.dim() == 4 else values

    def prepare_test(self, images: Tensor) -> Tensor:
        return self.prepare(self.augmentation.at_test(images))

    def autocast(self) -> AbstractContextManager[Any]:
        if self.config.precision == "bfloat16":
            return torch.autocast(self.device.type, torch.bfloat16)
        return nullcontext()

    def backward(self, x: Tensor, y: Tensor) -> None:
        """Put the gradients of the batch's mean loss in place."""
        self.optimizer.zero_grad(set_to_none=True)
        part = self.config.micro_batch or len(y)
        for inputs, labels in zip(torch.split(x, part), torch.split(y, part), strict=True):
            with self.autocast():
                outputs = self.network(inputs)
            loss = loss_of(outputs.to(self.dtype), labels)
            torch.autograd.backward(loss * (len(labels) / len(y)))
            self.note(loss, outputs, labels)

    @torch.no_grad()
    def note(self, loss: Tensor, outputs: Tensor, labels: Tensor) -> None:
        """Count a mean loss and its outputs towards the epoch's row; nothing waits for the device."""
        right = (outputs.argmax(-1) == labels).sum()
        self.sums[EpochTotal.LOSS] += loss.detach() * labels.numel()
        self.sums[EpochTotal.RIGHT] += right
        self.sums[EpochTotal.LABELS] += labels.numel()

    def step(self) -> None:
        if self.config.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip)
        self.optimizer.step()
        if self.average is not None:
            self.average.step()
        with self.move_rates():
            self.driver.step()
        self._turns.step()

    @contextmanager
    def move_rates(self) -> Iterator[None]:
        """Within it the schedule moves on; where it halves the weights, the monitor gets the rates that fit them."""
        halvings = self.driver.halvings
        yield
        if self.monitor is not None and self.driver.halvings != halvings:
            self.monitor.advance(0)

    def end_epoch(self) -> None:
        """Test, keep the epoch's row and the checkpoint, and see whether the run has diverged."""
        loss, right, count = self.ranks.total(self.sums.clone()).tolist()
        seconds = time.perf_counter() - self._started
        self.ranks.mix_buffers(self.model)
        test_loss, test_accuracy = self._test()
        row = {
            "train_loss": loss / count,
            "train_accuracy": right / count,
            "test_loss": test_loss,
            "test_accuracy": test_accuracy,
            "images_per_second": count / self.data.labels_per_sample / seconds,
            **self._turns.row(),
        }
        step = (self.epoch + 1) * self.config.steps_per_epoch - 1
        if self.monitor is not None:
            self.monitor.end_epoch(**row)
        elif self._writer is not None:
            self._writer.end_epoch({"epoch": self.epoch, "step": step, **row})
        self.history.append({"epoch": self.epoch, "step": step, **row})
        self.epoch += 1
        losses = [row["train_loss"] for row in self.history]
        self.diverged = not math.isfinite(loss) or is_stuck(losses, self.data.num_classes, self.config.epochs)
        if self.config.snapshot_every and self.epoch % self.config.snapshot_every == 0:
            self._save_snapshot()
        rested = time.monotonic() - self._last_checkpoint >= self._checkpoint_seconds
        if self.ended or (rested and self.epoch % self._checkpoint_every == 0):
            self._save()

    def _test(self) -> tuple[float, float]:
        """Loss and accuracy of the test set; NaN after an epoch that is not to be tested."""
        ended, every = self.epoch + 1, self.config.test_every
        if ended < self.config.epochs and not (every and ended % every == 0):
            return math.nan, math.nan
        with self.autocast(), self._tested_weights():
            return evaluate(self.model, self.data.test_x, self.data.test_y, self.prepare_test, self.ranks)

    def _tested_weights(self) -> AbstractContextManager[None]:
        return nullcontext() if self.average is None else self.average.in_place()

    def finish(self) -> Run:
        """Close the records, write the files of the run, and return it."""
        if self.monitor is not None:
            self.monitor.close()
        run = Run(
            config=self.config,
            status="diverged" if self.diverged else "finished" if self.epoch >= self.config.epochs else "pruned",
            epochs=pd.DataFrame(self.history),
            data_fingerprint=self.data.fingerprint,
            folder=self.folder,
            records_in_memory=self.monitor.records if self.monitor is not None and self.folder is None else None,
        )
        if self.folder is not None and self.ranks.leads:
            if self.config.save_weights:
                with self._tested_weights():
                    checkpoints.save_checkpoint(self.folder / WEIGHTS, self.model.state_dict())
            if self.config.save_predictions:
                with self.autocast(), self._tested_weights():
                    classes = predict_classes(self.model, self.data.test_x, self.prepare_test)
                write_whole(self.folder / PREDICTIONS, _npy(classes.numpy().astype(np.int16)))
            # Last: where it is, the run is complete.
            write_json(self.folder / RESULT, run.summary(self.device))
            (self.folder / CHECKPOINT).unlink(missing_ok=True)
        self.close()
        return run

    def close(self) -> None:
        """Release the folder, at the end or before it."""
        if self._lock is not None:
            self._lock.release()

    def _save(self) -> None:
        if self.folder is None or not self.ranks.leads:
            return
        # First the records: what they lack, a training that resumes from the checkpoint would not make again.
        if self.monitor is not None:
            self.monitor.flush()
        elif self._writer is not None:
            self._writer.flush()
        state = {
            "key": self.config.key,
            "data": self.data.fingerprint,
            "epoch": self.epoch,
            "diverged": self.diverged,
            "history": self.history,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "driver": self.driver.state_dict(),
            "monitor": self.monitor.state_dict() if self.monitor is not None else {},
            "average": self.average.state_dict() if self.average is not None else {},
        }
        checkpoints.save_checkpoint(self.folder / CHECKPOINT, state)
        self._last_checkpoint = time.monotonic()

    def _save_snapshot(self) -> None:
        if self.folder is not None and self.ranks.leads:
            checkpoints.save_checkpoint(self.folder / SNAPSHOT.format(self.epoch), self.model.state_dict())

    def _resume(self) -> None:
        if self.folder is None:
            return
        if self.ranks.leads:
            remove_leftovers(self.folder)
            write_json(self.folder / CONFIG, self.config.to_dict())
        state = self._saved_state()
        if state is None:
            if self._writer is not None:
                (self.folder / CHECKPOINT).unlink(missing_ok=True)
                self._writer.clear()  # a run from its first step makes the same records again
            return
        if state.get("key") != self.config.key:
            raise ArgumentError("out", "empty or the folder of the same config", str(self.folder), "choose another")
        if state["data"] != self.data.fingerprint:
            rule = "that with which the run started"
            raise ArgumentError("data", rule, self.config.data, "put the files back, or choose another folder")
        self.epoch, self.diverged, self.history = state["epoch"], state["diverged"], state["history"]
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.driver.load_state_dict(state["driver"])
        if self.monitor is not None:
            self.monitor.load_state_dict(state["monitor"])
        if self.average is not None:
            self.average.load_state_dict(state["average"])

    def _saved_state(self) -> dict[str, Any] | None:
        """What the checkpoint holds; None where there is none, or where it or the records beside it are damaged.

        Under several ranks, what one of them cannot read counts as damaged for all.
        """
        assert self.folder is not None
        file, state = self.folder / CHECKPOINT, None
        damaged = [damage.name for damage in self._writer.damaged] if self._writer is not None else []
        if file.exists():
            try:
                state = checkpoints.load_checkpoint(file, self.device)
            except ArgumentError:
                damaged.append(file.name)
            if state is not None and (lacking := [name for name in _SAVED if name not in state]):
                damaged.append(f"{file.name}, which lacks {lacking[0]}")
            if state is not None and self._writer is not None and self._writer.epochs_kept < state.get("epoch", 0):
                damaged.append("the table of epochs, which is not complete")
            whole = self.ranks.total(torch.tensor(len(damaged), device=self.device)).item() == 0
            if not whole and self.ranks.leads:
                what = ", ".join(damaged) or "the checkpoint, on another rank"
                warnings.warn(f"Damaged in {self.folder}: {what}. The run starts again.", stacklevel=4)
            if not whole:
                return None
        return state


#: what a checkpoint holds at least
_SAVED = ("key", "data", "epoch", "diverged", "history", "model", "optimizer", "driver", "monitor")


def _load(config: Config) -> Dataset:
    return load(config.data, config.data_root, config.recipe.samples, config.subset_seed)


_PLACED: dict[tuple[str, torch.device], Dataset] = {}


def _on_device(data: Dataset, device: torch.device) -> Dataset:
    """The data on `device`; trainings of one process share the last few, since copies would fill a GPU."""
    key = data.fingerprint, device
    if key not in _PLACED:
        moved = {name: getattr(data, name).to(device) for name in ("train_x", "train_y", "test_x", "test_y")}
        while len(_PLACED) >= 8:
            del _PLACED[next(iter(_PLACED))]
        _PLACED[key] = replace(data, **moved)
    return _PLACED[key]


def _npy(array: Any) -> memoryview:
    """The content of a .npy file."""
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getbuffer()
