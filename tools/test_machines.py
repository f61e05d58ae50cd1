"""Run the numerical tests as other machines would: `make test-machines`.

A test that passes on one processor and fails on another is broken. Each row below is one run of pytest over the folders
whose tests compare numbers; the environment makes this machine compute like an older one, with more threads, in another
order or with other seeds. It ends with a table, and with exit code 1 where a run failed.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
FOLDERS = (
    "schedules", "recipe", "dynamics", "laws", "nets", "optim", "papers", "symmetry",
    "lab", "search", "report", "integrations",
)  # fmt: skip
FILES = ("test_predict.py",)
#: tests of servers and browsers, which compute nothing
LEFT_OUT = ("lab/test_ray.py", "search/test_postgres.py", "report/test_run_browser.py")


@dataclass(frozen=True)
class Machine:
    """A name, and the environment that makes this machine behave so."""

    name: str
    environment: dict[str, str] = field(default_factory=dict)
    workers: int = 2


SSE = {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"}
AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}


def machines(order: int, seed: int) -> list[Machine]:
    """Every way in which the tests are run."""
    return [
        Machine("SSE4.1", SSE),
        Machine("AVX2", AVX2),
        Machine(f"this one, {torch.backends.cpu.get_cpu_capability()}"),
        # One test process: two with two threads each on two cores crawl.
        Machine("two threads", {"ISOGON_TEST_THREADS": "2"}, workers=1),
        Machine(f"order {order}", {"ISOGON_TEST_ORDER": str(order)}),
        Machine(f"seeds + {seed}", {"ISOGON_TEST_SEED": str(seed)}),
    ]


def run(machine: Machine) -> tuple[bool, str]:
    """Whether all tests passed, and pytest's last line; failures are shown as they come."""
    places = [str(ROOT / "tests" / place) for place in (*FOLDERS, *FILES)]
    ignored = [f"--ignore={ROOT / 'tests' / file}" for file in LEFT_OUT]
    command = [sys.executable, "-m", "pytest", "-q", "-n", str(machine.workers), "-m", "not slow", "--timeout", "600"]
    started = time.monotonic()
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", *ignored, *places],
        cwd=ROOT,
        env={**os.environ, **machine.environment},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    for line in lines:
        if line.startswith(("FAILED", "ERROR")):
            print(f"  {line}", flush=True)
    counts = next((line for line in reversed(lines) if re.search(r"\d+ (passed|failed|error)", line)), "no result")
    summary = re.sub(r" in [\d.]+s.*", "", counts.strip("= "))
    return done.returncode == 0, f"{summary}, {time.monotonic() - started:.0f} s"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help="run only the rows whose name holds this")
    parser.add_argument("--order", type=int, default=int(time.time()) % 10_000, help="seed of the shuffled order")
    parser.add_argument("--seed", type=int, default=1 + int(time.time()) % 97, help="what is added to the tests' seeds")
    options = parser.parse_args()
    chosen = [row for row in machines(options.order, options.seed) if not options.only or options.only in row.name]
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores", flush=True)
    good = True
    for machine in chosen:
        passed, summary = run(machine)
        good &= passed
        print(f"{'passed' if passed else 'FAILED':8}{machine.name:20}{summary}", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
