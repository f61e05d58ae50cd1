"""Searches without worker processes, where those are not what is tested."""

from __future__ import annotations

import sys

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


@pytest.fixture
def put_module(tmp_path, monkeypatch):
    """Write a module of the user's into the working folder, from which searches import it."""

    def put(name, source):
        (tmp_path / f"{name}.py").write_text(source)
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(tmp_path)
        sys.modules.pop(name, None)

    return put
