"""A Monitor in the Trainer of transformers: `IsogonCallback`."""

from __future__ import annotations

import io
import logging
import os
import warnings
from collections.abc import Callable, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any

import torch
from torch import nn

from isogon.dynamics import Finding, Monitor, RunFolder, Sink
from isogon.errors import ArgumentError, MissingExtraError
from isogon.files import write_whole
from isogon.integrations._findings_log import log_findings
from isogon.symmetry import ScaleMap, Symmetries

try:
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
    from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
except ImportError:
    raise MissingExtraError("transformers", extra="transformers", purpose="to watch its Trainer") from None

_LOG = logging.getLogger("transformers.isogon")
_FILE = "isogon.pt"


class IsogonCallback(TrainerCallback):
    """Watches the optimizer of a `transformers.Trainer` from the first training step to the last.

    An epoch of the record is one of the Trainer's, with the numbers logged at its end (`logging_strategy="epoch"`,
    `eval_strategy="epoch"`); an epoch cut short (`max_steps`) is not counted. The counters go into `isogon.pt` in each
    checkpoint's folder and are found there by a training that resumes. The monitor is `.monitor`: its `.records` can be
    read during the training and after it. A training that dies does not call its callbacks: then `.monitor.close()`
    takes the hooks off.

    Args:
        samples: training samples of an epoch; without it, the length of the training set.
        batch_size: samples of one optimizer step, over all processes and accumulated batches; without it, from the
            training arguments.
        inputs, scale_map, symmetries, every_steps, sinks: as of `isogon.dynamics.Monitor`.
        folder: where the records go, as `isogon.dynamics.RunFolder` keeps them.
        on_finding: called with each new finding when an epoch ends; all go to the log of transformers as well.
    """

    def __init__(
        self,
        *,
        samples: int | None = None,
        batch_size: int | None = None,
        inputs: Any = None,
        scale_map: ScaleMap | None = None,
        symmetries: Symmetries | None = None,
        every_steps: int = 10,
        folder: str | os.PathLike[str] | None = None,
        sinks: Sequence[Sink] = (),
        on_finding: Callable[[Finding], Any] | None = None,
    ) -> None:
        self.samples, self.batch_size = samples, batch_size
        self.folder, self.sinks = folder, tuple(sinks)
        self.monitor: Monitor | None = None
        self._options = {
            "inputs": inputs,
            "scale_map": scale_map,
            "symmetries": symmetries,
            "every_steps": every_steps,
            "on_finding": log_findings(_LOG, on_finding),
        }
        self._epoch_just_ended = False

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        train_dataloader: Any = None,
        **kwargs: Any,
    ) -> None:
        """Make the monitor, and load the checkpoint where the training resumes from one."""
        if self.monitor is not None:  # a training that died, or one that starts again with smaller batches
            self.monitor.close()
        assert model is not None
        assert optimizer is not None
        self._epoch_just_ended = False
        self.monitor = Monitor(
            model,
            _innermost(optimizer),
            batch_size=_batch_size(args, state) if self.batch_size is None else self.batch_size,
            samples=_samples(train_dataloader) if self.samples is None else self.samples,
            sinks=[*self.sinks, *([] if self.folder is None else [RunFolder(self.folder)])],
            **self._options,
        )
        if state.global_step and self.monitor.active:
            self._resume(self.monitor, _checkpoint(args, state) / _FILE, state)

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._epoch_just_ended = False

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """End the epoch if it was a whole one."""
        cut_short = (control.should_epoch_stop or control.should_training_stop) and (state.epoch or 0.0) % 1
        if self.monitor is not None and not cut_short:
            self.monitor.end_epoch()
            self._epoch_just_ended = True

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Add what is logged at the end of an epoch to its row; the Trainer logs after it has ended the epoch.

        Its last log is about the training as a whole and belongs to no row.
        """
        if self.monitor is not None and self._epoch_just_ended and logs and "train_runtime" not in logs:
            numbers = {name: float(value) for name, value in logs.items() if isinstance(value, int | float)}
            self.monitor.end_epoch(**{name: numbers[name] for name in numbers if name not in ("epoch", "step")})

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Put the monitor's state into the checkpoint."""
        folder = _checkpoint(args, state)
        if self.monitor is not None and self.monitor.writes and folder.is_dir():
            stream = io.BytesIO()
            torch.save(self.monitor.state_dict(), stream)
            write_whole(folder / _FILE, stream.getbuffer())

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Take the hooks off and close the sinks."""
        self._epoch_just_ended = False
        if self.monitor is not None:
            self.monitor.close()

    def _resume(self, monitor: Monitor, file: Path, state: TrainerState) -> None:
        if not file.exists():
            warnings.warn(f"The training resumes and {file} does not exist: steps are counted from 0.", stacklevel=3)
            return
        monitor.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))
        # A checkpoint made by the last step of an epoch knows nothing of that epoch's end.
        if int(state.epoch or 0) > len(monitor.epochs):
            monitor.end_epoch()


def _innermost(optimizer: Any) -> torch.optim.Optimizer:
    """The optimizer whose hooks fire: accelerate wraps it and calls the step of the one inside."""
    while isinstance(inside := getattr(optimizer, "optimizer", None), torch.optim.Optimizer):
        optimizer = inside
    innermost: torch.optim.Optimizer = optimizer
    return innermost


def _batch_size(args: TrainingArguments, state: TrainerState) -> int:
    """Samples of one optimizer step; the state knows the batch that `auto_find_batch_size` settled on."""
    of_process = state.train_batch_size or args.train_batch_size
    return int(of_process * args.gradient_accumulation_steps * args.world_size)


def _samples(loader: Any) -> int:
    dataset = getattr(loader, "dataset", None)
    if not isinstance(dataset, Sized):
        raise ArgumentError(
            "samples", "given where the training set has no length", dataset, "count the training samples of an epoch"
        )
    return len(dataset)


def _checkpoint(args: TrainingArguments, state: TrainerState) -> Path:
    """The folder that the Trainer saves the present step in."""
    return Path(str(args.output_dir)) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
