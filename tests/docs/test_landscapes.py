"""docs/landscapes.md quotes what its command prints of the committed tables."""

from __future__ import annotations

import re


def test_the_page_quotes_the_tables(root, monkeypatch):
    monkeypatch.syspath_prepend(str(root / "benchmarks"))
    from draw_landscapes import describe
    from replay import Landscape

    page = (root / "docs" / "landscapes.md").read_text(encoding="utf-8")
    quoted = re.findall(r"```\n(\S+-\S+), (.*?)```", page, re.S)
    tables = root / "benchmarks" / "tables"
    assert {name for name, _ in quoted} == {file.stem for file in tables.glob("*.parquet")}
    for name, text in quoted:
        assert describe(Landscape.read(tables / f"{name}.parquet")) == f"{name}, {text.strip()}"
