"""Findings in a trainer's own log."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from isogon.dynamics import Finding


def log_findings(logger: logging.Logger, also: Callable[[Finding], Any] | None) -> Callable[[Finding], None]:
    """What a Monitor calls with each new finding: it goes to `logger`, notes as information, and to `also`."""

    def report(finding: Finding) -> None:
        level = logging.INFO if finding.severity == "note" else logging.WARNING
        logger.log(level, "isogon, %s: %s", finding.severity, finding.advice)
        if also is not None:
            also(finding)

    return report
