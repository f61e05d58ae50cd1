"""A Monitor in Lightning's Trainer: `IsogonCallback`."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Sequence, Sized
from typing import Any

import pandas as pd

from isogon.dynamics import Finding, Monitor, RunFolder, Sink
from isogon.errors import ArgumentError, MissingExtraError, check_choice
from isogon.integrations._findings_log import log_findings
from isogon.integrations._scalars import scalar_name
from isogon.symmetry import ScaleMap, Symmetries

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError:
    raise MissingExtraError("lightning", extra="lightning", purpose="to watch a Lightning training") from None

_LOG = logging.getLogger("lightning.pytorch.isogon")
_LOGGED = ["step_angle", "epoch_angle"]


class IsogonCallback(Callback):
    """Watches the optimizers of a `Trainer` from the first training step to the last.

    An epoch of the record is one of the Trainer's, with the numbers its module logged; an epoch cut short (`max_steps`)
    is not counted. The counters go into checkpoints and come back with `ckpt_path`. The monitor is `.monitor`: its
    `.records` can be read during the training and after it.

    Args:
        samples: training samples of an epoch; without it, as many as the Trainer's dataloader gives.
        batch_size: samples of one optimizer step, over all processes and accumulated batches; without it, from the
            dataloader and the Trainer.
        inputs, scale_map, symmetries, every_steps, sinks: as of `isogon.dynamics.Monitor`; `inputs` are those of the
            module's `forward`, and the others answers about the LightningModule itself.
        folder: where the records go, as `isogon.dynamics.RunFolder` keeps them.
        log: whose newest step angle and epoch angle go to the Trainer's logger when an epoch ends: of the layer `all`,
            of the `layers` too, or of `none`.
        on_finding: called with each new finding when an epoch ends; all go to Lightning's log (`lightning.pytorch`).
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
        log: str = "all",
        on_finding: Callable[[Finding], Any] | None = None,
    ) -> None:
        self.samples, self.batch_size = samples, batch_size
        self.folder, self.sinks = folder, tuple(sinks)
        self.log_of = check_choice("log", log, ("all", "layers", "none"))
        self.monitor: Monitor | None = None
        self._options = {
            "inputs": inputs,
            "scale_map": scale_map,
            "symmetries": symmetries,
            "every_steps": every_steps,
            "on_finding": log_findings(_LOG, on_finding),
        }
        self._newest: dict[str, float] = {}
        self._watching = False
        self._state: dict[str, Any] = {}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Make the monitor; the optimizers, the data and a checkpoint's weights are all there by now."""
        batch_size = _batch_size(trainer) if self.batch_size is None else self.batch_size
        samples = _samples(trainer, batch_size) if self.samples is None else self.samples
        folders = [] if self.folder is None else [RunFolder(self.folder)]
        self._newest = {}
        self.monitor = Monitor(
            pl_module,
            trainer.optimizers,
            batch_size=batch_size,
            samples=samples,
            sinks=[self._keep_newest, *self.sinks, *folders],
            **self._options,
        )
        self._watching = True
        # What is left of an earlier training by this callback is no state of one that starts again.
        if self._state and trainer.global_step:
            self.monitor.load_state_dict(self._state)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End the epoch, and log its angles."""
        if self.monitor is None or not trainer.is_last_batch:
            return
        self.monitor.end_epoch(**_metrics(trainer))
        pl_module.log_dict(self._newest, rank_zero_only=True)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._close()

    def state_dict(self) -> dict[str, Any]:
        """The monitor's state, of a training under way or over."""
        if self.monitor is not None and self._watching:
            self._state = self.monitor.state_dict()
        return self._state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the state for the monitor that the training will make."""
        self._state = state_dict

    def _close(self) -> None:
        """Take the hooks off; the state stays, for a checkpoint saved when the training is over."""
        if self.monitor is not None and self._watching:
            self._state = self.monitor.state_dict()
            self.monitor.close()
            self._watching = False

    def _keep_newest(self, rows: pd.DataFrame) -> None:
        """A sink that remembers, by name, what is to be logged."""
        if self.log_of == "none":
            return
        chosen = rows if self.log_of == "layers" else rows[rows["layer"] == "all"]
        for quantity, of_layers in chosen.groupby("layer")[_LOGGED].last().items():
            for layer, value in of_layers.dropna().items():
                self._newest[scalar_name(str(layer), str(quantity))] = float(value)


def _batch_size(trainer: Trainer) -> int:
    """Samples of one optimizer step: the dataloader's batch, over all processes and accumulated batches."""
    loader = trainer.train_dataloader
    sampler = getattr(loader, "batch_sampler", None)
    size = getattr(loader, "batch_size", None) or getattr(sampler, "batch_size", None)
    if not isinstance(size, int):
        raise ArgumentError(
            "batch_size",
            "given where the training data is not a DataLoader with a batch size",
            loader,
            "count the samples of one optimizer step",
        )
    return size * trainer.world_size * trainer.accumulate_grad_batches


def _samples(trainer: Trainer, batch_size: int) -> int:
    """Samples of one epoch: the dataset's, or fewer where the Trainer or the dataloader leaves some out."""
    dataset = getattr(trainer.train_dataloader, "dataset", None)
    most = len(dataset) if isinstance(dataset, Sized) else math.inf
    fed = trainer.num_training_batches * batch_size / trainer.accumulate_grad_batches
    if not math.isfinite(samples := min(most, fed)):
        raise ArgumentError(
            "samples", "given where the training data has no length", dataset, "count the training samples of an epoch"
        )
    return int(samples)


def _metrics(trainer: Trainer) -> dict[str, float]:
    """What the module logged, as plain numbers."""
    return {
        name: float(value)
        for name, value in trainer.callback_metrics.items()
        if value.numel() == 1 and name not in ("epoch", "step") and not name.startswith("isogon/")
    }
