"""The examples of the pages write into a folder of their own."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _use_own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
