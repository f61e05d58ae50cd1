"""Doctests left out where their module needs what is not installed; why tests were skipped; how long some may take."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
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


# Tests that grow easily: a pattern of their ids, and the seconds that all of them may take together in `make test`.
# What would take longer is marked slow. Three times what they take on two cores of an AMD EPYC.
_BUDGETS = {
    "fuzz": (re.compile(r"tests/fuzz/"), 60),
    "pages in a browser": (re.compile("browser"), 120),
    "other people's models": (re.compile("test_symmetries|test_strangers|test_models"), 120),
}
_seconds: Counter[str] = Counter()


def pytest_runtest_logreport(report: Any) -> None:
    if "slow" not in report.keywords:
        _seconds.update(
            {name: report.duration for name, (pattern, _) in _BUDGETS.items() if pattern.search(report.nodeid)}
        )


def over_budget(seconds: Mapping[str, float]) -> list[str]:
    """
    >>> over_budget({"fuzz": 61.0})
    ['Tests of fuzz took 61 s of 60: mark some of them slow.']
    """
    over = {name: seconds.get(name, 0.0) for name, (_, most) in _BUDGETS.items() if seconds.get(name, 0.0) > most}
    return [
        f"Tests of {name} took {took:.0f} s of {_BUDGETS[name][1]}: mark some of them slow."
        for name, took in over.items()
    ]


def pytest_sessionfinish(session: Any) -> None:
    if over_budget(_seconds) and session.exitstatus == 0:
        session.exitstatus = 1


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """What took longer than it may, and how many tests were skipped for want of what."""
    for line in over_budget(_seconds):
        terminalreporter.write_line(line, red=True)
    reports = terminalreporter.stats.get("skipped", [])
    reasons = [report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr) for report in reports]
    counts = Counter(map(lacked, reasons))
    found = ", ".join(f"{count} for want of {thing}" for thing, count in counts.most_common())
    terminalreporter.write_line(f"Skipped: {found}." if counts else "Skipped: nothing.")
