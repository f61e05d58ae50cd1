"""`run_all`: many trainings, by the engine that suits the machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import torch

from isogon.errors import ArgumentError, check_choice, check_whole
from isogon.lab.checkpoints import write_whole
from isogon.lab.config import Config
from isogon.lab.lane_group import AT_ONCE
from isogon.lab.progress import bar_of_runs
from isogon.lab.runs import RESULT, Run
from isogon.lab.workers import Unit, work_through

Engine = Literal["local", "lanes"]
ENGINES: tuple[Engine, ...] = ("local", "lanes")
ERROR = "error.txt"


def run_all(
    configs: Sequence[Config],
    engine: Engine = "local",
    out: str | os.PathLike[str] = "runs",
    *,
    workers: int | None = None,
    device: str | None = None,
    progress: bool = True,
) -> list[Run]:
    """Train every config in a folder of its own below `out`; their runs, in order.

    The same call again reads the runs that have ended and resumes the others. A run that fails is a `Run` with status
    `failed` and its error, also kept in its folder; it ends no other, and is tried again by the next call.

    Args:
        engine: `local` trains one config in each worker process, `lanes` several at once (see `lab.lanes`).
        workers: processes, one thread each; the cores this process may use, or 1 on a GPU, unless given.
        device: `cuda` where there is one, else `cpu`.
        progress: bars on a terminal, a line a run elsewhere.

    A script that calls this must do so under `if __name__ == "__main__":`, since each worker imports it.
    """
    check_choice("engine", engine, ENGINES)
    configs = list(configs)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    workers = check_whole("workers", workers or _default_workers(device), cure="count the processes")
    by_key = {config.key: config for config in configs}
    if len(by_key) < len(configs):
        given = f"{len(configs)} of which {len(by_key)} differ"
        raise ArgumentError("configs", "all different", given, "vary the seed")
    folder = Path(out)
    places = {key: folder / config.name for key, config in by_key.items()}
    missing = [config for key, config in by_key.items() if not (places[key] / RESULT).exists()]
    errors: dict[str, str] = {}
    units = [[config] for config in missing] if engine == "local" else _lane_units(missing, workers, device)
    with bar_of_runs(missing, done=len(configs) - len(missing), shown=progress) as show:

        def heard(kind: str, key: str, content: Any) -> None:
            if kind == "failed":
                errors[key] = content
                places[key].mkdir(parents=True, exist_ok=True)
                write_whole(places[key] / ERROR, lambda file: file.write_text(content, encoding="utf-8"))
            show(kind, by_key[key], content)

        if units:
            work_through(units, str(folder), workers=min(workers, len(units)), device=device, heard=heard)
    return [
        _failed(config, places[key], errors[key]) if key in errors else Run.read(places[key])
        for key, config in by_key.items()
    ]


def _lane_units(configs: Sequence[Config], workers: int, device: str) -> list[Unit]:
    """Configs of one network together; on a CPU in parts small enough that every worker has one."""
    alike: dict[tuple[Any, ...], Unit] = {}
    for config in configs:
        network = config.net, tuple(sorted(config.net_options.items())), config.data, config.precision
        alike.setdefault(network, []).append(config)
    units = []
    for group in alike.values():
        part = len(group) if device.startswith("cuda") else min(AT_ONCE["cpu"], -(-len(group) // workers))
        units += [group[start : start + part] for start in range(0, len(group), part)]
    return units


def _failed(config: Config, folder: Path, error: str) -> Run:
    return Run(config=config, status="failed", epochs=pd.DataFrame(), folder=folder, error=error)


def _default_workers(device: str) -> int:
    if device.startswith("cuda"):
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
