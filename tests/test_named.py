"""What users call their own code: modules and files, found as Python itself would find them."""

from __future__ import annotations

import sys

import pytest

from isogon import Recipe, named
from isogon.errors import ArgumentError, IsogonError
from isogon.lab import Config, train
from isogon.search.study._objective import find_objective

SOURCE = """
from helper_of_mine import WIDTH
from isogon import nets

class Holder:
    @staticmethod
    def make(num_classes, in_channels):
        return nets.cnn4(num_classes, in_channels, width=WIDTH)

number = 3
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder below the current one with a file that imports another beside it."""
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(tmp_path))])
    monkeypatch.chdir(tmp_path)
    place = tmp_path / "parts"
    place.mkdir()
    (place / "mine.py").write_text(SOURCE)
    (place / "helper_of_mine.py").write_text("WIDTH = 2\n")
    yield place
    for name, module in list(sys.modules.items()):
        if str(place) in str(getattr(module, "__file__", None)) or name == "parts":
            del sys.modules[name]


@pytest.mark.parametrize("path", ["parts/mine.py:Holder.make", "./parts/mine.py:Holder.make", "parts.mine:Holder.make"])
def test_a_network_of_ones_own_is_trained(folder, path):
    if path.startswith("parts."):
        sys.path.insert(0, str(folder))  # a package's modules do not look beside themselves
    recipe = Recipe(lr=0.1, weight_decay=5e-3, batch_size=50, samples=100, epochs=1)
    config = Config(recipe=recipe, net=path, net_options={}, data="digits", monitor_every=0)
    run = train(config, device="cpu", progress=False)
    assert run.status == "finished"


def test_a_file_is_run_once_and_under_its_own_name(folder, monkeypatch):
    first = named.find("net", "parts/mine.py:Holder")
    monkeypatch.chdir(folder)
    assert named.find("net", "mine.py:Holder") is first
    assert "mine" not in sys.modules


@pytest.mark.parametrize(
    ("content", "path", "sentence"),
    [
        ("", "mine.py", "net must be package.module:function or file.py:function, got 'mine.py'"),
        ("", "parts/mine.py:", "net must be package.module:function or file.py:function"),
        ("", "parts/nothere.py:make", "got 'parts/nothere.py:make': there is no file parts/nothere.py."),
        ("", "nowhere.at_all:make", "No module named 'nowhere'"),
        ("", "parts/mine.py:make", "has no attribute 'make'"),
        ("import nothing_like_this", "parts/mine.py:make", "No module named 'nothing_like_this'"),
        ("1 / 0", "parts/mine.py:make", "importing parts/mine.py failed (ZeroDivisionError: division by zero)."),
        ("raise SystemExit(2)", "parts/mine.py:make", "importing parts/mine.py failed (SystemExit: 2)."),
        ("def f(:", "parts/mine.py:make", "importing parts/mine.py failed (SyntaxError: "),
    ],
)
def test_what_cannot_be_found_is_said_in_one_sentence(folder, content, path, sentence):
    (folder / "mine.py").write_text(content)
    for _ in range(2):  # half a module is not left for the next time
        with pytest.raises(IsogonError) as caught:
            named.find("net", path)
        assert sentence in str(caught.value)
        assert "\n" not in str(caught.value)


def test_an_objective_must_be_a_function(folder):
    with pytest.raises(ArgumentError, match=r"objective must be a function, got .*: it names a int"):
        find_objective("parts/mine.py:number")
    assert find_objective("parts/mine.py:Holder.make")
