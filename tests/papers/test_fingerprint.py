"""What was computed is computed again when its code has changed, and only then."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import lru_cache, partial
from importlib import import_module, invalidate_caches
from types import ModuleType

import pytest

from isogon.papers.reproduction._fingerprint import code_fingerprint
from isogon.papers.reproduction._runner import reproduce

HERE = {"engine": "local", "device": "cpu", "progress": False}
CODE = """import pandas as pd

calls = []

def compute(options):
    calls.append(options)
    return pd.DataFrame({"panel": ["a"], "value": [1.0]})
"""


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Write a module, import it again and return it."""
    monkeypatch.syspath_prepend(str(tmp_path / "code"))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "code").mkdir()

    def write(text):
        (tmp_path / "code" / "experiment_under_test.py").write_text(text)
        monkeypatch.delitem(sys.modules, "experiment_under_test", raising=False)
        invalidate_caches()
        return import_module("experiment_under_test")

    yield write
    sys.modules.pop("experiment_under_test", None)


def test_a_changed_experiment_is_computed_again(toys, written, tmp_path):
    def compute(text):
        module = written(text)
        experiment = replace(toys["la/computed"], compute=module.compute)
        (reproduction,) = reproduce([experiment], out=tmp_path / "out", **HERE)
        return reproduction.table["value"].tolist(), len(module.calls)

    assert compute(CODE) == ([1.0], 1)
    assert compute(CODE) == ([1.0], 0)
    assert compute(CODE.replace("calls = []", "calls = []  # of compute\n")) == ([1.0], 0), "a comment changes nothing"
    assert compute(CODE.replace("1.0", "2.0")) == ([2.0], 1)
    assert compute(CODE) == ([1.0], 0), "what the old code made is still there"


def test_code_imported_from_the_papers_counts_and_other_code_does_not(written, tmp_path, monkeypatch):
    helper = ModuleType("isogon.papers.helper_under_test")
    helper.value, helper.__file__ = 1, str(tmp_path / "helper.py")
    monkeypatch.setitem(sys.modules, helper.__name__, helper)
    (tmp_path / "helper.py").write_text("value = 1\n")
    module = written("from isogon.papers.helper_under_test import value\n\ndef compute(options):\n    return value\n")
    before = code_fingerprint(module.compute)
    (tmp_path / "helper.py").write_text("value = 1  # the same\n")
    assert code_fingerprint(module.compute) == before
    (tmp_path / "helper.py").write_text("value = 2\n")
    assert code_fingerprint(module.compute) != before


def test_wrapped_functions_have_the_code_of_what_they_wrap(written):
    compute = written(CODE).compute
    known = code_fingerprint(compute)
    assert code_fingerprint(partial(partial(compute), None)) == known
    assert code_fingerprint(lru_cache(compute)) == known
    assert code_fingerprint(lambda options: None) != known


def test_the_version_counts(written, monkeypatch):
    compute = written(CODE).compute
    known = code_fingerprint(compute)
    monkeypatch.setattr("isogon.papers.reproduction._fingerprint.__version__", "99")
    assert code_fingerprint(compute) != known
