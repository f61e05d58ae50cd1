"""Modules whose doctests are left out where what they are written in is not installed; what tests were skipped for."""

from __future__ import annotations

import re
from collections import Counter
from importlib.util import find_spec
from typing import Any

_TRITON = ["src/isogon/dynamics/measure/_fused_sums.py", "src/isogon/lab/gpu/fused/*.py"]
collect_ignore_glob = [] if find_spec("triton") else _TRITON

# What a test that was skipped says → what it lacked.
_LACKED = (
    (re.compile("CUDA|GPU", re.IGNORECASE), "a GPU"),
    (re.compile("chromium", re.IGNORECASE), "Chromium"),
    (re.compile(r"could not import '([\w.]+)'"), r"\1"),
    (re.compile(r"(?:Skipped: )?(.+?) (?:is|are) not (?:beside|installed|in|there)\b"), r"\1"),
)


def lacked(reason: str) -> str:
    """What a test lacked, from the reason for which it was skipped.

    >>> lacked("Skipped: needs CUDA"), lacked("could not import 'torchvision': No module named 'torchvision'")
    ('a GPU', 'torchvision')
    >>> lacked("Skipped: the data folder is not beside the project"), lacked("Skipped: has no stem to choose")
    ('the data folder', "something else ('has no stem to choose')")
    """
    for pattern, thing in _LACKED:
        found = pattern.search(reason)
        if found:
            return found.expand(thing) if "\\" in thing else thing
    return f"something else ({reason.removeprefix('Skipped: ')!r})"


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """One line that says how many tests were skipped for want of what."""
    reports = terminalreporter.stats.get("skipped", [])
    reasons = [report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr) for report in reports]
    counts = Counter(map(lacked, reasons))
    found = ", ".join(f"{count} for want of {thing}" for thing, count in counts.most_common())
    terminalreporter.write_line(f"Skipped: {found}." if counts else "Skipped: nothing.")
