"""Searches without worker processes, where those are not what is tested."""

from __future__ import annotations

import pytest


@pytest.fixture
def no_workers(monkeypatch):
    """Trials run in the test's own process: a worker would take seconds to start."""

    def in_turn(jobs, *, on_event, claim):
        for job in jobs:
            if claim(job):
                job.work(on_event)

    # By name: not every test of this folder needs the packages that these modules import.
    for module in ("isogon.search.trials._execution", "isogon.lab.engines._run_all"):
        monkeypatch.setattr(f"{module}.pool_for", lambda *_, **__: in_turn)
