"""What type checkers and editors see of the public names."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

import isogon

# Every public name by itself: in a tuple, one that is Any would pass.
NAMES = sorted(name for name in isogon.__all__ if not name.startswith("_"))
# Each line's type is revealed; none of them may be Any.
SCRIPT = (
    "import isogon\nfrom isogon import Recipe\n"
    + "".join(f"reveal_type(isogon.{name})\n" for name in NAMES)
    + """
reveal_type(Recipe(lr=0.1, weight_decay=1e-4, batch_size=128, samples=50_000))
reveal_type(Recipe(lr=0.1, weight_decay=1e-4, batch_size=128, samples=50_000).motion)
reveal_type(Recipe(lr=0.1, weight_decay=1e-4, batch_size=128, samples=1).transfer(solve="lr", batch_size=2).recipe)
reveal_type(isogon.search.run)
reveal_type(isogon.search.Study)
reveal_type(isogon.lab.train)
reveal_type(isogon.lab.Config)
reveal_type(isogon.papers.experiments())
reveal_type(isogon.schedules.cosine(0.1, 1e-4, 100))
reveal_type(isogon.optim.drive)
reveal_type(isogon.dynamics.read)
reveal_type(isogon.nets.resnet18)
isogon.nonsense
isogon.search.nonsense
"""
)


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """mypy's lines about the script, which lies outside the project."""
    folder = tmp_path_factory.mktemp("user")
    (folder / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--follow-imports=silent", "script.py"],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stdout.splitlines()


def test_no_public_name_is_any(answers):
    revealed = [line for line in answers if "Revealed type" in line]
    assert len(revealed) == SCRIPT.count("reveal_type")
    for line in revealed:
        # An argument may be of any type where the function says so; what is revealed itself may not.
        assert not re.search(r'Revealed type is "(Any|builtins\.object)', line), line


def test_every_public_name_is_asked_for():
    assert {"Recipe", "Monitor", "check", "convert", "symmetries", "Symmetries", "IsogonError"} <= set(NAMES)


def test_misspelt_names_are_errors(answers):
    errors = [line for line in answers if ": error:" in line]
    assert len(errors) == 2, errors
    assert all("nonsense" in line for line in errors)
