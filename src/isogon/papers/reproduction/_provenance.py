"""Where results come from: the command, the trainings and computations behind them, hardware, versions, date."""

from __future__ import annotations

import json
import math
import platform
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import pandas as pd
import torch

from isogon import __version__
from isogon.errors import last_line
from isogon.lab import RESULT, Config, Run
from isogon.papers.reproduction._experiment import Label, Options

RUN_STATUSES = ("finished", "diverged", "failed", "pruned")
#: status of a training that has not ended, and of a computation without training
WAITING, COMPUTED = "waiting", "computed"


@dataclass(frozen=True)
class Source:
    """Where rows of a result come from: a training, or a call of the experiment's `compute`.

    `place` is its place in the experiment, by `place_of`. `key` is the name of the training, or the fingerprint of the
    code: rows of the same place and key are the same.
    """

    place: str
    key: str
    status: str
    command: str
    seed: int = 0
    images: int = 0
    seconds: float = 0.0
    hardware: str = ""
    versions: str = ""
    date: str = ""
    error: str = ""

    @property
    def is_training(self) -> bool:
        return self.status != COMPUTED

    @property
    def ended_well(self) -> bool:
        return self.status not in (WAITING, "failed")


def place_of(labels: Mapping[str, Any]) -> str:
    """The labels of a training or of a row as one text; a missing label is NaN in a table.

    >>> place_of({"row": "0.01", "column": 3125.0, "seed": 0, "kind": math.nan})
    'column=3125, row=0.01, seed=0'
    """
    texts = {name: label_text(value) for name, value in sorted(labels.items()) if pd.notna(value)}
    return ", ".join(f"{name}={text}" for name, text in texts.items())


def label_text(label: Label) -> str:
    """A label as people write it: 3125.0 is 3125."""
    if isinstance(label, float):
        return f"{label:.0f}" if label.is_integer() else f"{label:g}"
    return str(label)


def command_of(identity: str, options: Options, *, engine: str, device: str) -> str:
    """The command line that makes this result.

    >>> command_of("yun/table1", Options("small", panels=("b",), seeds=1), engine="lanes", device="cuda")
    'isogon reproduce yun/table1 --scale small --panels b --seeds 1 --engine lanes --device cuda'
    """
    values = {
        "scale": options.scale,
        "panels": ",".join(options.panels or ()),
        "columns": ",".join(options.columns or ()),
        "seeds": "" if options.seeds is None else str(options.seeds),
        "first-seed": str(options.first_seed or ""),
        "engine": engine,
        "device": device,
    }
    flags = (f"--{name} {shlex.quote(value)}" for name, value in values.items() if value)
    return " ".join([f"isogon reproduce {identity}", *flags])


def source_of(labels: Mapping[str, Label], config: Config, run: Run | None, command: str) -> Source:
    """A planned training and, if it has ended, how; hardware, versions and date are those of the training."""
    facts: dict[str, Any] = {"place": place_of(labels), "key": config.name, "command": command, "seed": config.seed}
    if run is None:
        return Source(status=WAITING, **facts)
    facts |= {"status": run.status, "images": run.images, "seconds": round(run.seconds, 3)}
    if run.status == "failed":
        return Source(**facts, error=last_line(run.error or "failed"))
    assert run.folder is not None
    file = run.folder / RESULT
    result = json.loads(file.read_text(encoding="utf-8"))
    versions = _versions(result["versions"])
    return Source(**facts, hardware=str(result["device"]), versions=versions, date=_day(file.stat().st_mtime))


def computation_source(options: Options, key: str, command: str, ended: float) -> Source:
    """A call of `compute` with these options, on this machine and with these versions."""
    labels = {"panels": options.panels, "columns": options.columns}
    texts: dict[str, Any] = {name: "+".join(values) for name, values in labels.items() if values is not None}
    place = f"{COMPUTED} {place_of({**texts, 'seeds': options.seeds})}".strip()
    return replace(_HERE, place=place, key=key, status=COMPUTED, command=command, date=_day(ended))


def provenance_of(command: str, sources: Sequence[Source], missing: Sequence[str] = ()) -> dict[str, Any]:
    """Facts for a result's file, over all its sources; a training in several places counts once.

    `command` is used if there are no sources, `missing` are sentences about what could not be computed.
    """
    runs = list({source.key: source for source in sources if source.is_training}.values())
    facts = [source for source in sources if source.date] or [replace(_HERE, date=_day(time.time()))]
    return {
        "command": " && ".join(dict.fromkeys(source.command for source in sources)) or command,
        "date": max(fact.date for fact in facts),
        "hardware": sorted({fact.hardware for fact in facts}),
        "versions": sorted({version for fact in facts for version in fact.versions.split(", ")}),
        "seeds": sorted({run.seed for run in runs if run.status != WAITING}),
        "runs": {
            "planned": len(runs),
            **{status: sum(run.status == status for run in runs) for status in RUN_STATUSES},
        },
        "images": sum(run.images for run in runs),
        "seconds": round(math.fsum(run.seconds for run in runs), 3),
        "errors": {run.key: run.error for run in runs if run.error},
        "missing": list(missing),
    }


def _versions(numbers: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {number}" for name, number in numbers.items())


def _day(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d")


_HERE = Source(
    place="",
    key="",
    status="",
    command="",
    hardware=platform.machine(),
    versions=_versions({"isogon": __version__, "torch": torch.__version__, "python": platform.python_version()}),
)
