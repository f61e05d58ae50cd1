"""`code_fingerprint`: whether the code behind what was computed is still the same."""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

from isogon import __version__

#: what a module imports from this package is part of it
_PACKAGE = "isogon.papers"


def code_fingerprint(function: Callable[..., Any]) -> str:
    """Eight digits for the code of the function's module, of the papers' modules that it imports, and of our version.

    Comments and layout do not count. Code outside the papers, such as the theory, counts by the version.
    """
    while isinstance(function, partial):
        function = function.func
    codes: dict[str, str] = {}
    waiting = [function.__module__]
    while waiting:
        name = waiting.pop()
        file = getattr(sys.modules.get(name), "__file__", None)
        if name not in codes and file is not None:
            codes[name], imported = _parse(Path(file), Path(file).stat().st_mtime_ns)
            waiting += imported
    whole = "\0".join([__version__, *(f"{name}\0{codes[name]}" for name in sorted(codes))])
    return hashlib.sha256(whole.encode()).hexdigest()[:8]


@cache
def _parse(file: Path, changed: int) -> tuple[str, tuple[str, ...]]:
    """The code without comments, and the names of what it may import from the package; `changed` is the file's time."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return ast.dump(tree), tuple(name for name in names if name.startswith(f"{_PACKAGE}."))
