"""Rooms import only what the design allows. The table below is the design's."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

ALLOWED = {
    "errors": set(),
    "named": set(),
    "files": set(),
    "guard": set(),
    "theory": set(),
    "recipe": {"theory", "files"},
    "schedules": {"theory"},
    "predict": {"theory", "recipe", "schedules"},
    "symmetry": set(),
    "nets": {"symmetry"},
    "dynamics": {"files", "theory", "recipe", "symmetry"},
    "optim": {"theory", "schedules", "symmetry", "dynamics"},
    "lab": {"files", "guard", "named", "recipe", "schedules", "symmetry", "nets", "dynamics", "optim"},
    "search": {"files", "named", "recipe", "schedules", "dynamics", "lab"},
    "report": {"files", "theory", "recipe", "predict", "dynamics", "search"},
    "integrations": {"recipe", "symmetry", "dynamics", "optim"},
}
BELOW = {
    "files",
    "theory",
    "recipe",
    "schedules",
    "predict",
    "symmetry",
    "nets",
    "dynamics",
    "optim",
    "lab",
    "search",
    "report",
}
ALLOWED["papers"] = ALLOWED["demo"] = BELOW
ALLOWED["cli"] = BELOW | {"guard", "named", "papers", "demo", "integrations"}
# The door itself: public names load lazily, so it imports nothing at the top.
ALLOWED["__init__"] = set()
ALLOWED["__main__"] = {"cli", "guard"}

#: what the rooms without torch may import from outside the standard library
WITHOUT_TORCH = {"errors", "files", "guard", "named", "theory", "recipe", "schedules", "predict", "report"}
HEAVY = {"torch", "pandas"}


def imported(path: Path, package: Path, *, top_level_only: bool = False) -> set[str]:
    """Every dotted name that `path` imports, relative imports made absolute."""
    tree = ast.parse(path.read_text())
    where = ["isogon", *path.relative_to(package).with_suffix("").parts]
    names: set[str] = set()
    nodes = _runs_on_import(tree) if top_level_only else ast.walk(tree)
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = where[: -node.level] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            names |= {f"{stem}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "import_module":
            names |= {arg.value for arg in node.args if isinstance(arg, ast.Constant)}
    return names


def _runs_on_import(tree: ast.Module):
    """Nodes outside functions and outside `if TYPE_CHECKING:`."""
    waiting = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        waiting.extend(ast.iter_child_nodes(node))


def room_of(path: Path, package: Path) -> str:
    return path.relative_to(package).with_suffix("").parts[0]


def forbidden_edges(package: Path) -> list[str]:
    """Each import of one room by another that the table does not allow."""
    edges = []
    for path in sorted(package.rglob("*.py")):
        room = room_of(path, package)
        if room not in ALLOWED:
            edges.append(f"{path.relative_to(package)}: room {room} is not in the design")
            continue
        for name in sorted(imported(path, package)):
            parts = name.split(".")
            if parts[0] != "isogon" or len(parts) == 1:
                continue
            target = parts[1]
            if target.startswith("__") or target not in ALLOWED:
                continue  # a name of the package's own door, such as __version__
            if target not in ALLOWED[room] | {room, "errors"}:
                edges.append(f"{path.relative_to(package)}: {room} imports {target}")
    return edges


@pytest.fixture(scope="module")
def package(root):
    return root / "src" / "isogon"


def test_rooms_import_only_what_the_design_allows(package):
    assert forbidden_edges(package) == []


def test_light_rooms_load_nothing_heavy(package):
    for path in package.rglob("*.py"):
        if room_of(path, package) in WITHOUT_TORCH:
            tops = {name.split(".")[0] for name in imported(path, package, top_level_only=True)}
            assert not tops & HEAVY, path
        if room_of(path, package) == "theory":
            outside = {name.split(".")[0] for name in imported(path, package)} - {"isogon", "numpy"}
            assert outside <= sys.stdlib_module_names, path


@pytest.mark.parametrize(
    ("place", "line", "complaint"),
    [
        ("theory/bad.py", "from isogon.recipe import Recipe", "theory imports recipe"),
        ("theory/bad.py", "from ..recipe import Recipe", "theory imports recipe"),
        ("theory/bad.py", "from .. import recipe", "theory imports recipe"),
        ("recipe.py", "import isogon.lab.data", "recipe imports lab"),
        ("dynamics/deep/bad.py", "def f():\n    from isogon.lab import train", "dynamics imports lab"),
        ("symmetry/bad.py", "import importlib\nimportlib.import_module('isogon.nets')", "symmetry imports nets"),
        ("kitchen/new.py", "x = 1", "room kitchen is not in the design"),
    ],
)
def test_the_check_can_fail(tmp_path, place, line, complaint):
    path = tmp_path / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(line + "\n")
    (edge,) = forbidden_edges(tmp_path)
    assert complaint in edge


def test_the_check_allows_what_the_design_allows(tmp_path):
    path = tmp_path / "dynamics" / "good.py"
    path.parent.mkdir()
    path.write_text("from isogon import __version__\nfrom isogon.theory.motion import law\nfrom . import other\n")
    assert forbidden_edges(tmp_path) == []
