"""Where results come from: the command, the runs behind them, hardware, versions, date."""

from __future__ import annotations

import json
import platform
import shlex
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import torch

from isogon import __version__
from isogon.lab import Run
from isogon.lab.runs import RESULT
from isogon.papers.experiment import Options

_STATUSES = ("finished", "diverged", "failed", "pruned")


def command_of(identity: str, options: Options, *, engine: str, device: str) -> str:
    """The command line that makes this result.

    >>> command_of("yun/table1", Options("small", panels=("b",), seeds=1), engine="lanes", device="cuda")
    'isogon reproduce yun/table1 --scale small --panels b --seeds 1 --engine lanes --device cuda'
    """
    given = {
        "scale": options.scale,
        "panels": ",".join(options.panels or ()),
        "columns": ",".join(options.columns or ()),
        "seeds": "" if options.seeds is None else str(options.seeds),
        "engine": engine,
        "device": device,
    }
    flags = (f"--{name} {shlex.quote(value)}" for name, value in given.items() if value)
    return " ".join([f"isogon reproduce {identity}", *flags])


def how_made(command: str, runs: Sequence[Run], planned: int) -> dict[str, Any]:
    """Facts for a result's file; hardware, versions and date are those of the runs, wherever this is called."""
    versions = {"isogon": __version__, "torch": torch.__version__, "python": platform.python_version()}
    here = {"device": platform.machine(), "versions": versions, "ended": time.time()}
    facts = [_result(run) for run in runs if run.status != "failed"] or [here]
    return {
        "command": command,
        "date": datetime.fromtimestamp(max(fact["ended"] for fact in facts), UTC).strftime("%Y-%m-%d"),
        "hardware": sorted({str(fact["device"]) for fact in facts}),
        "versions": sorted({f"{name} {number}" for fact in facts for name, number in fact["versions"].items()}),
        "seeds": sorted({run.config.seed for run in runs}),
        "runs": {"planned": planned, **{status: sum(run.status == status for run in runs) for status in _STATUSES}},
        "images": sum(run.images for run in runs),
        "seconds": round(sum(run.seconds for run in runs), 3),
        "errors": {run.config.name: run.error.strip().splitlines()[-1] for run in runs if run.error},
    }


def _result(run: Run) -> dict[str, Any]:
    """What the run's folder says about where it was trained, and when it ended."""
    assert run.folder is not None
    file = run.folder / RESULT
    return {**json.loads(file.read_text(encoding="utf-8")), "ended": file.stat().st_mtime}
