"""What `import isogon` costs and offers."""

from __future__ import annotations

import subprocess
import sys

import pytest

import isogon


def test_importing_isogon_loads_nothing_heavy():
    script = (
        "import sys, isogon\n"
        "assert not {'torch', 'pandas', 'numpy', 'typer', 'rich'} & set(sys.modules)\n"
        "isogon.Recipe(lr=0.1, weight_decay=1e-4, batch_size=1, samples=1).motion\n"
        "assert not {'torch', 'pandas'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_every_public_name_loads_and_is_listed():
    for name in isogon.__all__:
        assert getattr(isogon, name) is not None
        assert name in dir(isogon)


def test_a_wrong_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="recipes"):
        isogon.recipes  # noqa: B018
