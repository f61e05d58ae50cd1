"""The README's own words: its lines run, its numbers are what they print, its names are there after `import isogon`."""

from __future__ import annotations

import contextlib
import io
import re
import shlex

import pytest

import isogon
from isogon.cli import main


@pytest.fixture(scope="module")
def readme(root):
    return (root / "README.md").read_text(encoding="utf-8")


def test_the_five_lines_print_what_stands_beside_them(readme):
    (block,) = re.findall(r"```python\n(.*?)```", readme, re.S)
    promised = re.findall(r"^print\(.*\)  # (.*)$", block, re.M)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(block, {})
    assert printed.getvalue().splitlines() == promised
    assert len(promised) == 2


def test_every_name_of_the_table_is_there_after_import_isogon(readme):
    for name in set(re.findall(r"`(isogon(?:\.\w+)+)", readme)):
        place = isogon
        for part in name.split(".")[1:]:
            place = getattr(place, part)


def test_the_commands_run(readme, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    commands = re.findall(r"^isogon ((?:transfer|predict|check) .*)$", readme, re.M)
    assert len(commands) == 3
    for command in commands:
        with pytest.raises(SystemExit) as stop:
            main(shlex.split(command))
        assert stop.value.code == 0, command
