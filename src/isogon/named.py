"""`find`: what the user calls `package.module:name` or `folder/file.py:name`."""

from __future__ import annotations

import importlib
import os
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from isogon.errors import ArgumentError, IsogonError, first_line


def find(argument: str, path: str, *, kind: str = "function") -> Any:
    """The object at `path`; an error names `argument`, and `kind` for the part after the colon.

    Modules are looked for in the current folder too, and those that a file imports beside it as well, as Python itself
    would. A file is run once, however often it is asked for.

    >>> find("net", "isogon.nets:cnn4").__name__
    'cnn4'
    """
    place, _, name = path.rpartition(":")
    if not place or not name:
        rule = f"package.module:{kind} or file.py:{kind}"
        raise ArgumentError(argument, rule, path, "for example isogon.nets:resnet18")
    _add_to_path(os.getcwd())
    try:
        target: Any = _load_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
        for part in name.split("."):
            target = getattr(target, part)
    except (ImportError, AttributeError, FileNotFoundError, ValueError, TypeError) as error:
        raise ArgumentError(argument, "importable from the current folder", path, first_line(error)) from None
    except (Exception, SystemExit) as error:  # a script may read our arguments as its own, and end
        raise IsogonError(f"importing {place} failed ({type(error).__name__}: {first_line(error)}).") from None
    return target


def _load_file(file: Path) -> ModuleType:
    resolved = file.resolve()
    if not resolved.is_file():
        raise FileNotFoundError(f"there is no file {file}")
    # Under its whole path, so that no other module is in its way, or it in another's.
    name = str(resolved)
    if name not in sys.modules:
        spec = spec_from_file_location(name, resolved)
        assert spec is not None, "it ends in .py"
        assert spec.loader is not None
        module = module_from_spec(spec)
        _add_to_path(str(resolved.parent))
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]  # not half of it
            raise
    return sys.modules[name]


def _add_to_path(folder: str) -> None:
    if folder not in sys.path:
        sys.path.insert(0, folder)
