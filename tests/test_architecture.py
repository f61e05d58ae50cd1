"""Rooms import only what `docs/architecture.md` allows, and only through each other's doors."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "architecture.md"
#: what stands for all rooms above it in the table
ABOVE = "everything above"


def read_table(page: str) -> dict[str, set[str]]:
    """Room → the rooms that it may import, from the page's table of allowed imports.

    >>> read_table("| room | may import |\\n|---|---|\\n| `theory` | nothing |\\n| `a`, `b` | theory |\\n")["b"]
    {'theory'}
    """
    allowed: dict[str, set[str]] = {}
    lines = page[page.index("| room | may import |") :].splitlines()[2:]
    for line in lines:
        if not line.startswith("|"):
            break
        rooms, imports = (cell.strip() for cell in line.strip("|").split("|"))
        names = {name.strip() for name in imports.replace(ABOVE, ", ".join(allowed)).split(",")} - {"nothing", ""}
        for room in re.findall(r"`(\w+)`", rooms):
            allowed[room] = set(names)
    return allowed


ALLOWED = read_table(PAGE.read_text(encoding="utf-8"))
#: rooms that must load without torch and pandas
WITHOUT_TORCH = {"errors", "files", "guard", "named", "theory", "recipe", "schedules", "predict", "report"}
HEAVY = {"torch", "pandas"}


class Import(NamedTuple):
    """`from module import name`; `name` is empty for `import module`."""

    module: str
    name: str


def read_imports(path: Path, package: Path, *, top_level_only: bool = False) -> list[Import]:
    """Every import of `path`, relative ones made absolute."""
    tree = ast.parse(path.read_text())
    where = ["isogon", *path.relative_to(package).with_suffix("").parts]
    imports: list[Import] = []
    for node in _runs_on_import(tree) if top_level_only else ast.walk(tree):
        if isinstance(node, ast.Import):
            imports += [Import(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = where[: -node.level] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            imports += [Import(stem, alias.name) for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "import_module":
            imports += [Import(arg.value, "") for arg in node.args if isinstance(arg, ast.Constant)]
    return imports


def _runs_on_import(tree: ast.Module) -> Iterator[ast.AST]:
    """Nodes outside functions and outside `if TYPE_CHECKING:`."""
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        waiting.extend(ast.iter_child_nodes(node))


def get_room(path: Path, package: Path) -> str:
    return path.relative_to(package).with_suffix("").parts[0]


def find_violations(package: Path) -> list[str]:
    """Each import that the table does not allow, that goes past a door, or that takes a folder's private module."""
    sentences = []
    for path in sorted(package.rglob("*.py")):
        place, room = path.relative_to(package), get_room(path, package)
        if room not in ALLOWED:
            sentences.append(f"{place}: room {room} is not in docs/architecture.md")
            continue
        for module, name in read_imports(path, package):
            parts = module.split(".")
            if parts[0] != "isogon":
                continue
            if len(parts) == 1:  # from isogon import name
                parts = [*parts, *([name] if name in ALLOWED else [])]
            if len(parts) == 1:
                continue  # a name of the package's own door, such as __version__
            target = parts[1]
            if target not in ALLOWED[room] | {room, "errors"}:
                sentences.append(f"{place}: {room} imports {target}")
            elif target != room and len(parts) > 2:
                sentences.append(f"{place}: {module} is inside {target}: import from isogon.{target}")
            for depth, part in enumerate(parts[1:]):
                folder = Path(*parts[1 : depth + 1])
                if part.startswith("_") and not part.startswith("__") and folder not in place.parents:
                    sentences.append(f"{place}: {module} is private to {folder}")
    return sentences


@pytest.fixture(scope="module")
def package(root):
    return root / "src" / "isogon"


def test_rooms_import_what_the_page_allows_and_through_doors(package):
    assert find_violations(package) == []


def test_every_folder_has_a_door_that_says_what_it_is_for(package):
    for folder in {path.parent for path in package.rglob("*.py")}:
        door = ast.parse((folder / "__init__.py").read_text())
        assert ast.get_docstring(door), folder


def test_modules_of_a_room_are_private_or_named_at_its_door(package):
    for path in package.rglob("*.py"):
        room = path.relative_to(package).parts[0]
        if len(path.relative_to(package).parts) == 1 or path.stem.startswith("_") or room == "integrations":
            continue
        # Networks that a config names by a string stay where saved configs look for them.
        assert path.stem in {*getattr(import_module(f"isogon.{room}"), "__all__", ()), "network", "tiny_network"}, path


def test_the_page_names_every_room_and_no_other(package):
    there = {path.stem for path in package.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert set(ALLOWED) == there
    tree = PAGE.read_text(encoding="utf-8").split("```")[1]
    named = set(re.findall(r"^  (\w+)(?:/|\.py)", tree, re.MULTILINE))
    assert named == there - {"__init__", "__main__"} | {"__init__"}


def test_every_file_that_the_page_names_is_there(root):
    text = PAGE.read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:src/isogon|tests|docs|benchmarks|tools)/[\w./]+)`", text))
    named |= {f"src/isogon/{place}" for place in re.findall(r"`((?:\w+/)+\w+\.(?:py|toml|md))`", text)}
    missing = {
        place for place in named if not ((root / place).exists() or (root / place.removeprefix("src/isogon/")).exists())
    }
    assert len(named) > 40
    assert missing == set()


def test_light_rooms_load_nothing_heavy(package):
    for path in package.rglob("*.py"):
        if get_room(path, package) in WITHOUT_TORCH:
            tops = {imported.module.split(".")[0] for imported in read_imports(path, package, top_level_only=True)}
            assert not tops & HEAVY, path
        if get_room(path, package) == "theory":
            outside = {imported.module.split(".")[0] for imported in read_imports(path, package)} - {"isogon", "numpy"}
            assert outside <= sys.stdlib_module_names, path


def test_what_benchmarks_tools_and_examples_import_is_there(root, package):
    """They are not run by the suite: at least their imports must not go stale."""
    for folder in ("benchmarks", "tools", "docs"):
        for path in sorted((root / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "isogon":
                    if "triton" in node.module or "fused" in node.module:
                        continue
                    for alias in node.names:
                        assert hasattr(import_module(node.module), alias.name), f"{path}: {node.module}.{alias.name}"


#: calls that write to a path; `files.write_whole` alone may
WRITERS = re.compile(
    r"(.*\.(write_text|write_bytes|savefig|to_parquet|to_csv|tofile)|(torch|np|numpy)\.savez?|(json|pickle)\.dump)"
)


def find_writes(path: Path) -> list[str]:
    """Calls of `path` that write a file past the one writer: their first path is no stream in memory.

    A call with a `stream` writes into memory, and one without arguments but options returns bytes.
    """
    writes = []
    for node in ast.walk(ast.parse(path.read_text())):
        if not (isinstance(node, ast.Call) and WRITERS.fullmatch(ast.unparse(node.func))):
            continue
        targets = [*node.args, *(option.value for option in node.keywords if option.arg in ("path", "file", "f"))]
        names = {target.id for target in targets if isinstance(target, ast.Name)}
        if targets and not names & {"stream"}:
            writes.append(f"{path.name}:{node.lineno} {ast.unparse(node)}")
    return writes


def test_all_files_are_written_by_the_one_writer(package):
    others = [write for path in package.rglob("*.py") if path.name != "files.py" for write in find_writes(path)]
    assert others == []


def test_the_search_for_writes_finds_them(tmp_path):
    (tmp_path / "a.py").write_text(
        "torch.save(state, folder / 'a.pt')\nrows.to_parquet(index=False)\nx.write_text('')\n"
    )
    assert len(find_writes(tmp_path / "a.py")) == 2


@pytest.mark.parametrize("door", ["isogon", "isogon.search"])
def test_lazy_doors_say_the_same_to_type_checkers(package, door):
    module = import_module(door)
    visible: dict[str, str] = {}
    for node in ast.parse(Path(module.__file__).read_text()).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for statement in node.body:
                assert isinstance(statement, ast.ImportFrom)
                for alias in statement.names:
                    assert alias.asname == alias.name, "`X as X` exports"
                    visible[alias.name] = statement.module
    assert sorted(visible) == sorted(name for name in module.__all__ if name != "__version__")
    for name, place in visible.items():
        if hasattr(import_module(place), name):
            assert getattr(module, name) is getattr(import_module(place), name)


@pytest.mark.parametrize(
    ("place", "line", "complaint"),
    [
        ("theory/bad.py", "from isogon.recipe import Recipe", "theory imports recipe"),
        ("theory/bad.py", "from ..recipe import Recipe", "theory imports recipe"),
        ("theory/bad.py", "from .. import recipe", "theory imports recipe"),
        ("recipe.py", "import isogon.lab", "recipe imports lab"),
        ("dynamics/deep/bad.py", "def f():\n    from isogon.lab import train", "dynamics imports lab"),
        ("symmetry/bad.py", "import importlib\nimportlib.import_module('isogon.nets')", "symmetry imports nets"),
        ("kitchen/new.py", "x = 1", "room kitchen is not in"),
        ("dynamics/bad.py", "from isogon.theory.motion import law", "import from isogon.theory"),
        ("dynamics/bad.py", "import isogon.theory.motion", "import from isogon.theory"),
        ("lab/data/bad.py", "from isogon.lab.run._training import Training", "is private to lab/run"),
        ("lab/run/bad.py", "from ..engines._table import x", "is private to lab/engines"),
    ],
)
def test_the_check_can_fail(tmp_path, place, line, complaint):
    path = tmp_path / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(line + "\n")
    (sentence,) = find_violations(tmp_path)
    assert complaint in sentence


def test_the_check_allows_what_the_page_allows(tmp_path):
    path = tmp_path / "dynamics" / "measure" / "good.py"
    path.parent.mkdir(parents=True)
    path.write_text(
        "from isogon import __version__\nfrom isogon.theory import law\nfrom . import other\n"
        "from isogon.dynamics._monitor import Monitor\nfrom isogon.dynamics.record import read\n"
    )
    assert find_violations(tmp_path) == []
