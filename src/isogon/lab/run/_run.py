"""`Run`: how a training went; what is in its folder."""

from __future__ import annotations

import math
import platform
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from isogon import __version__
from isogon.dynamics import read, read_epochs
from isogon.errors import ArgumentError, IsogonError
from isogon.files import read_json
from isogon.lab.data import is_text
from isogon.lab.run._config import Config

#: files of a run's folder, beside those of `dynamics.RunFolder`
CONFIG, CHECKPOINT, RESULT = "config.json", "checkpoint.pt", "result.json"
SNAPSHOT = "weights-after-{}.pt"
WEIGHTS, PREDICTIONS = "weights.pt", "predictions.npy"
#: a file that stops the run in whose folder it is: the run ends, pruned, after the current epoch
STOP = "stop"

RunStatus = Literal["finished", "diverged", "failed", "pruned"]


class Metric(NamedTuple):
    """What a run is judged by."""

    name: Literal["accuracy", "loss"]
    direction: Literal["maximize", "minimize"]


class DamagedRunError(ArgumentError):
    """A run that has ended and whose files cannot be read."""


@dataclass(frozen=True, eq=False)
class Run:
    """A training that ended: `finished`, `diverged`, `pruned` (stopped early), or `failed` with its `error`.

    `epochs` has one row per epoch: losses, accuracies, images/s. `accuracy` is the test accuracy of the last epoch, as
    the papers seem to report; NaN where the run did not finish. Epochs that were not tested have NaN.
    """

    config: Config
    status: RunStatus
    epochs: pd.DataFrame
    data_fingerprint: str = ""
    folder: Path | None = None
    records_in_memory: pd.DataFrame | None = None
    error: str | None = None

    @property
    def accuracy(self) -> float:
        return self._test_accuracies[-1] if self._test_accuracies else math.nan

    @property
    def test_loss(self) -> float:
        """The test loss of the last epoch; NaN where the run did not finish."""
        return float(self.epochs["test_loss"].iloc[-1]) if self._test_accuracies else math.nan

    @property
    def metric(self) -> Metric:
        """The loss for text, the accuracy for images."""
        return Metric("loss", "minimize") if is_text(self.config.data) else Metric("accuracy", "maximize")

    @property
    def value(self) -> float:
        """The metric after the last epoch; NaN where the run did not finish."""
        return self.test_loss if self.metric.name == "loss" else self.accuracy

    @property
    def bits_per_byte(self) -> float:
        """The test loss in bits, for text."""
        return self.test_loss / math.log(2)

    @property
    def best_accuracy(self) -> float:
        return max((value for value in self._test_accuracies if not math.isnan(value)), default=math.nan)

    @property
    def images(self) -> int:
        """Training images seen, the measure of a run's cost."""
        return len(self.epochs) * self.config.images_per_epoch

    @property
    def seconds(self) -> float:
        """Time spent on training, tests and checkpoints aside."""
        if not len(self.epochs):
            return 0.0
        return float((self.images / len(self.epochs) / self.epochs["images_per_second"]).sum())

    @property
    def records(self) -> pd.DataFrame:
        """The monitor's table; read from the folder where there is one."""
        if self.records_in_memory is not None:
            return self.records_in_memory
        if self.folder is None or not self.config.monitor_every:
            raise IsogonError("This run has no records: train it with monitor_every above 0.")
        return read(self.folder)

    @property
    def predictions(self) -> NDArray[np.int16]:
        """The class given to each test image at the end; needs `save_predictions` and a folder."""
        file = self.folder / PREDICTIONS if self.folder is not None else None
        if file is None or not file.exists():
            raise IsogonError("This run has no predictions: train it with save_predictions=True and a folder.")
        classes: NDArray[np.int16] = np.load(file, allow_pickle=False)
        return classes

    @property
    def snapshots(self) -> dict[int, Path]:
        """Files of the weights after some epochs, as `snapshot_every` asks for; `torch.load` reads them."""
        every = self.config.snapshot_every
        if self.folder is None or not every:
            raise IsogonError("This run has no snapshots: train it with snapshot_every above 0 and a folder.")
        return {epoch: self.folder / SNAPSHOT.format(epoch) for epoch in range(every, len(self.epochs) + 1, every)}

    @property
    def _test_accuracies(self) -> list[float]:
        return list(self.epochs["test_accuracy"]) if self.status == "finished" and len(self.epochs) else []

    def summary(self, device: torch.device) -> dict[str, Any]:
        """What `result.json` holds."""
        return {
            "status": self.status,
            "accuracy": None if math.isnan(self.accuracy) else self.accuracy,
            "metric": self.metric.name,
            "value": None if math.isnan(self.value) else self.value,
            "epochs": len(self.epochs),
            "images": self.images,
            "data_fingerprint": self.data_fingerprint,
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
            "versions": {"isogon": __version__, "torch": torch.__version__, "python": platform.python_version()},
        }

    @classmethod
    def read(cls, folder: Path | str) -> Self:
        """The run that ended in `folder`."""
        folder = Path(folder)
        if not (folder / RESULT).exists():
            raise ArgumentError("folder", "a run that has ended", str(folder), "train it to its end first")
        try:
            result, content = (read_json(folder / name, name) for name in (RESULT, CONFIG))
            status, fingerprint, epochs = result["status"], result["data_fingerprint"], read_epochs(folder)
            if len(epochs) != result["epochs"]:
                raise ValueError("its table of epochs is not complete")
            config = Config.from_dict(content)
        except MemoryError:
            raise
        except Exception:  # pyarrow raises errors of many types
            cure = "remove the folder to train it again"
            raise DamagedRunError("folder", "a run whose files can be read", str(folder), cure) from None
        return cls(config, status, epochs, data_fingerprint=fingerprint, folder=folder)

    @classmethod
    def read_if_ended(cls, folder: Path | str | None) -> Self | None:
        """The run that ended in `folder`; None where none has.

        Where one has and its files are damaged, the result is removed with a warning, so that it is trained again.
        """
        if folder is None or not Path(folder, RESULT).exists():
            return None
        try:
            return cls.read(folder)
        except DamagedRunError:
            warnings.warn(f"The files of the run in {folder} are damaged: it is trained again.", stacklevel=2)
            Path(folder, RESULT).unlink(missing_ok=True)
            return None
