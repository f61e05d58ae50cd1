"""From the table to advice: what a record calls for, each finding with its evidence."""

from __future__ import annotations

from isogon.dynamics.findings._evidence import drops
from isogon.dynamics.findings._findings import Finding, findings
from isogon.dynamics.findings._run_facts import HAS_NO_LAW

__all__ = ["HAS_NO_LAW", "Finding", "drops", "findings"]
