"""The commands of docs/changing-batch-and-data.md print the sentences that stand below them."""

from __future__ import annotations

import re
import shlex

import pytest

from isogon.cli import main


def test_each_question_has_its_answer(root, capsys):
    page = (root / "docs" / "changing-batch-and-data.md").read_text(encoding="utf-8")
    questions = re.findall(r"^\*\*\d+\. ", page, re.M)
    answered = re.findall(r"^isogon (.*)\n# (.*)\n(?:# (.*)\n)?", page, re.M)
    assert len(questions) == len(answered) == 10
    for command, answer, more in answered:
        with pytest.raises(SystemExit) as stop:
            main(shlex.split(command))
        printed = capsys.readouterr().out
        assert stop.value.code == 0, command
        assert any(line.startswith(answer) for line in printed.splitlines()), (command, printed)
        assert more in printed


def test_the_table_of_rules_is_the_benchmarks(root):
    """Every "0.26 (100 %)" of the page stands in the committed table."""
    page = (root / "docs" / "changing-batch-and-data.md").read_text(encoding="utf-8")
    table = (root / "benchmarks" / "results" / "rules.md").read_text(encoding="utf-8")
    measured = set(re.findall(r"\| (\d\.\d\d) \| (\d+)% \|", table))
    quoted = re.findall(r"(\d\.\d\d) \((\d+) %\)", page)
    assert len(quoted) > 15
    assert set(quoted) <= measured
