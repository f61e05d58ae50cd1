"""CPU time of `isogon transfer` against a bare import of torch (`python -c "import torch"`)."""

from __future__ import annotations

import os
import platform
import resource
import statistics
import subprocess
import sys
from importlib.metadata import version

RECIPE = ["--lr", "0.1", "--wd", "0.0016", "--batch", "512", "--samples", "80000"]
TRANSFER = ["-m", "isogon", "transfer", *RECIPE, "--to", "samples=1280000"]
RUNS = {"isogon transfer": TRANSFER, "import torch": ["-c", "import torch"]}
REPEATS = 15


def cpu_seconds(arguments: list[str]) -> float:
    """User and system time of one Python process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    times: dict[str, list[float]] = {name: [] for name in RUNS}
    for _ in range(REPEATS):
        for name, arguments in RUNS.items():
            times[name].append(cpu_seconds(arguments))
    packages = ", ".join(f"{name} {version(name)}" for name in ("numpy", "typer", "rich", "torch"))
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, {packages}")
    for name, values in times.items():
        print(f"{name:<16} median {statistics.median(values):.3f} s CPU, worst {max(values):.3f} s, {REPEATS} runs")
    ratio = statistics.median(times["isogon transfer"]) / statistics.median(times["import torch"])
    print(f"ratio {ratio:.2f}")


if __name__ == "__main__":
    main()
