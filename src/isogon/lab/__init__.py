"""The lab: data, the training loop, and engines that run many trainings. Core rooms never import it."""

from __future__ import annotations

from isogon.lab._disk_space import DiskFullError, full_disk, naming_a_full_disk
from isogon.lab._progress import board_of
from isogon.lab.data import DamagedDataError, Dataset, MissingDataError, data_root, load, needed_package
from isogon.lab.engines import (
    ENGINES,
    DiskFull,
    Engine,
    EpochEnded,
    Event,
    RaySettings,
    RunEnded,
    RunFailed,
    Say,
    TrainingEnded,
    TrainingEpoch,
    ValueRefused,
    kept_ready,
    pool_for,
    run_all,
)
from isogon.lab.gpu import lanes
from isogon.lab.run import (
    CHECKPOINT,
    NET_OPTIONS,
    RESULT,
    STOP,
    TRAINED,
    Config,
    FolderLock,
    Run,
    Training,
    check_names,
    column_of,
    default_device,
    evaluate,
    load_checkpoint,
    save_checkpoint,
    train,
    try_out,
)

#: its name in version 0.1, for one version more
Trial = Training

__all__ = [
    "CHECKPOINT",
    "ENGINES",
    "NET_OPTIONS",
    "RESULT",
    "STOP",
    "TRAINED",
    "Config",
    "DamagedDataError",
    "Dataset",
    "DiskFull",
    "DiskFullError",
    "Engine",
    "EpochEnded",
    "Event",
    "FolderLock",
    "MissingDataError",
    "RaySettings",
    "Run",
    "RunEnded",
    "RunFailed",
    "Say",
    "TrainingEnded",
    "TrainingEpoch",
    "Training",
    "ValueRefused",
    "board_of",
    "check_names",
    "column_of",
    "data_root",
    "default_device",
    "evaluate",
    "full_disk",
    "kept_ready",
    "lanes",
    "load",
    "load_checkpoint",
    "naming_a_full_disk",
    "needed_package",
    "pool_for",
    "run_all",
    "save_checkpoint",
    "train",
    "try_out",
]
