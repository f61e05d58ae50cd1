"""Names that docs/theory.md gives are in the package."""

from __future__ import annotations

import re
from functools import reduce

import isogon


def test_every_name_of_the_page_is_there(root):
    page = (root / "docs" / "theory.md").read_text(encoding="utf-8")
    named = set(re.findall(r"\b((?:theory|schedules|optim|dynamics|Recipe)(?:\.\w+)+)", page))
    # "`a.b.first`, `second`" in one cell: the second is beside the first.
    for first, others in re.findall(r"`((?:theory|dynamics)\.\w+)\.\w+`((?:, `\w+`)+)", page):
        named |= {f"{first}.{name}" for name in re.findall(r"`(\w+)`", others)}
    assert len(named) > 25
    for name in sorted(named):
        assert reduce(getattr, name.split("."), isogon) is not None, name


def test_equations_are_numbered_once_and_in_order(root):
    page = (root / "docs" / "theory.md").read_text(encoding="utf-8")
    numbers = [int(a or b or c) for a, b, c in re.findall(r"^\| (\d+) \||^    \((\d+)\)  |\((\d+), `optim", page, re.M)]
    assert numbers == list(range(1, len(numbers) + 1))
