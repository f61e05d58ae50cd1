"""One training: its config, the training that steps through it, and the run that is left of it."""

from __future__ import annotations

from isogon.lab.run._augment import Augmentation, NoAugmentation, PadCropFlip
from isogon.lab.run._checkpoints import FolderLock, load_checkpoint, save_checkpoint
from isogon.lab.run._config import NET_OPTIONS, Config
from isogon.lab.run._evaluation import evaluate, loss_of
from isogon.lab.run._k_step_angles import column_of
from isogon.lab.run._networks import check_names, try_out
from isogon.lab.run._optimizers import TRAINED
from isogon.lab.run._run import CHECKPOINT, RESULT, STOP, Metric, Run, RunStatus
from isogon.lab.run._train import default_device, run_folder, train
from isogon.lab.run._training import Training

__all__ = [
    "CHECKPOINT",
    "NET_OPTIONS",
    "RESULT",
    "STOP",
    "TRAINED",
    "Augmentation",
    "Config",
    "FolderLock",
    "Metric",
    "NoAugmentation",
    "PadCropFlip",
    "Run",
    "RunStatus",
    "Training",
    "check_names",
    "column_of",
    "default_device",
    "evaluate",
    "load_checkpoint",
    "loss_of",
    "run_folder",
    "save_checkpoint",
    "train",
    "try_out",
]
