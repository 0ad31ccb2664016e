"""The house stands: data flows one way, what is exported is said, and the examples print what they promise."""

import ast
import importlib
import os
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import openloop

ROOT = Path(openloop.__file__).parent
HOME = ROOT.parent.parent

# A module imports only from rooms further left.
LEVELS = [
    ["errors", "arrays", "units", "spec", "terms", "seeds", "clock", "plugins", "said", "cluster", "native", "records"],
    ["slo", "distributions", "arrivals", "admission", "persistence", "workload", "routing", "quality"],
    ["load", "sim", "proxy", "importers", "serve"],
    ["score"],
    ["frontier"],
    ["compare", "calibrate", "plan", "tune", "decide", "watch", "audit", "report", "view", "export", "demo"],
    ["cli", "pytest_plugin"],
]
LEVEL = {room: level for level, rooms in enumerate(LEVELS) for room in rooms}
PRODUCERS = {"load", "sim", "proxy", "importers"}

# Modules whose functions are entries of a table that they export.
WITH_HELPERS = {
    f"openloop.{name}" for name in ("report.compare_page", "report.curve", "report.plan", "report.run", "score.verdict")
}

FILES = sorted(ROOT.rglob("*.py"))
MODULES = sorted(name for _, name, _ in pkgutil.walk_packages([str(ROOT)], "openloop.") if name != "openloop.__main__")


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def imports_of(path: Path) -> Iterator[str]:
    """Modules of openloop that a file imports, also inside functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
            assert "openloop" not in names, f"{path} imports the package itself, which hides where names come from"
            yield from (name for name in names if name.startswith("openloop."))
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            if node.module == "openloop":
                names = [alias.name for alias in node.names]
                assert names == ["__version__"], f"{path} takes {names} from the package and not from a room"
            elif (node.module or "").startswith("openloop."):
                base = str(node.module)
                inner = [f"{base}.{alias.name}" for alias in node.names]
                yield from (name if name in MODULES else base for name in inner)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_module_has_a_room_and_imports_only_from_its_left(path: Path) -> None:
    room = room_of(module_of(path))
    if room in ("", "__main__"):
        return
    assert room in LEVEL, f"{room} has no place in the house: give it one here and in DESIGN.md"
    for module in imports_of(path):
        other = room_of(module)
        assert other == room or LEVEL[other] <= LEVEL[room], f"{room} imports {other}, to its right"
        assert not ({room, other} <= PRODUCERS and room != other), f"producer {room} imports producer {other}"


def test_no_module_imports_itself_by_a_detour() -> None:
    edges = {module_of(path): set(imports_of(path)) for path in FILES}
    done: set[str] = set()

    def visit(module: str, trail: tuple[str, ...]) -> None:
        assert module not in trail, f"cycle: {' -> '.join([*trail[trail.index(module) :], module])}"
        if module not in done:
            for other in edges.get(module, ()):
                if other != module:
                    visit(other, (*trail, module))
            done.add(module)

    for module in edges:
        visit(module, ())


def offered_by(module: ModuleType) -> set[str]:
    """What a package lists in __all__; of a module without such a list, every name that has no underscore."""
    if hasattr(module, "__all__"):
        return set(module.__all__)
    found: set[str] = set()
    for node in ast.parse(Path(str(module.__file__)).read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)}
    return {name for name in found if not name.startswith("_")}


@pytest.mark.parametrize("name", ["openloop", *MODULES])
def test_what_a_module_lists_is_there_and_is_all_that_others_use(name: str) -> None:
    module = importlib.import_module(name)
    listed = getattr(module, "__all__", None)
    is_package = hasattr(module, "__path__")
    if listed is None:
        # openloop.load imports nothing, so that workers start quickly
        assert not is_package or name in ("openloop.report", "openloop.load"), f"{name} does not say what it offers"
        return
    assert sorted(set(listed)) == sorted(listed)
    for each in listed:
        assert hasattr(module, each), f"{name} lists {each}, which is not there"
    source = ast.parse(Path(str(module.__file__)).read_text())
    defined = {node.name for node in source.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    if name.startswith("openloop.cli"):
        defined = set()  # commands are reached through the group that they join
    elif is_package and name != "openloop":
        imported = [node for node in source.body if isinstance(node, ast.ImportFrom)]
        defined |= {a.name for node in imported for a in node.names if (node.module or "").startswith("openloop.")}
    public = {each for each in defined if not each.startswith("_")}
    if name not in WITH_HELPERS:
        assert public <= set(listed), f"{name} has {public - set(listed)}, which it does not list"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_names_taken_from_another_room_are_offered_there(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("openloop."):
            module = importlib.import_module(str(node.module))
            if room_of(str(node.module)) == room_of(module_of(path)):
                continue
            inner = {m.rpartition(".")[2] for m in MODULES if m.startswith(f"{node.module}.")}
            for alias in node.names:
                assert alias.name in offered_by(module) | inner, (
                    f"{path.name} takes {alias.name} from {node.module}, which does not offer it"
                )


def test_the_package_offers_what_it_says() -> None:
    assert sorted(dir(openloop)) == sorted(openloop.__all__)
    listed = {name for names in openloop._HOME.values() for name in names} | {"__version__"}
    assert listed == set(openloop.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = openloop.nonsense


@pytest.mark.parametrize("path", sorted((HOME / "examples").glob("*.py")), ids=lambda path: path.name)
def test_an_example_prints_what_stands_beside_it_and_draws_what_it_says(path: Path, tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT.parent)}
    call = [sys.executable, str(path), str(tmp_path)]
    done = subprocess.run(call, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout == path.with_suffix(".out").read_text()
    for figure in re.findall(r'\.save\(folder / "(.+?)"\)', path.read_text()):
        assert (tmp_path / figure).stat().st_size > 10_000


def test_what_is_imported_by_name_is_known() -> None:
    """Against the flow, or to start quickly; DESIGN.md says why."""
    found = {
        (module_of(path), name)
        for path in FILES
        for name in re.findall(r'import_module\("(openloop[\w.]*)"\)', path.read_text())
    }
    assert found == {
        ("openloop.load", "openloop.importers"),
        ("openloop.native.kept", "openloop.native.build"),
        ("openloop.records.run", "openloop.report.notebook"),
        ("openloop.score.scorer", "openloop.report.notebook"),
    }


def test_no_function_imports_outside_the_command_line() -> None:
    for path in FILES:
        if path.parent.name == "cli" or path.name == "pytest_plugin.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                inner = [n for n in ast.walk(node) if isinstance(n, ast.Import | ast.ImportFrom)]
                assert not inner, f"{path.name}: {node.name} imports inside"


# Class names that stand for one thing in several rooms, and why they may.
SHARED_NAMES = {
    "Ask": "what is asked: as a workload makes it, and as the endpoint and the proxy read it off the wire",
    "Row": "a row of records, and the type of a table's row in the translator to machine code",
    "Table": "a table of a report, and the type of one in the translator to machine code",
}


def test_a_class_name_means_one_thing() -> None:
    homes: dict[str, list[str]] = {}
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(module_of(path))
    shared = {name: modules for name, modules in homes.items() if len(modules) > 1}
    twice = {name: modules for name, modules in shared.items() if name not in SHARED_NAMES}
    assert not twice, f"classes of the same name, of which one needs another: {twice}"
    assert shared.keys() == SHARED_NAMES.keys(), "a name that is no longer shared is still listed"


def test_words_are_defined_where_the_glossary_says() -> None:
    text = (HOME / "docs" / "words.md").read_text()
    classes = {
        node.name for path in FILES for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)
    }
    for place in re.findall(r"`(\w+(?:/\w*)?(?:\.py|(?<=/)))`", text):
        assert (ROOT / place).exists(), f"{place} is named in docs/words.md and is not there"
    for name in re.findall(r"`([A-Z]+[a-z]\w+)`", text):
        assert name in classes, f"{name} is named in docs/words.md and is no class"


def test_recipes_name_files_and_registries_that_are_there() -> None:
    text = (HOME / "ADDING.md").read_text()
    names = {path.name for path in FILES} | {path.name for path in (HOME / "tests").rglob("*.py")}
    for place in re.findall(r"`([\w/]+\.py)`", text):
        known = (ROOT / place).exists() or (HOME / place).exists() if "/" in place else place in names
        assert known, f"{place} is named in ADDING.md and is not there"
    given = {
        target.id
        for path in [*FILES, *(HOME / "tests").rglob("*.py")]
        for node in ast.parse(path.read_text()).body
        for target in (node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)])
        if isinstance(target, ast.Name)
    }
    for name in re.findall(r"`(_?[A-Z_]{3,})`", text):
        assert name in given, f"{name} is named in ADDING.md and is not there"


def test_what_the_makefile_imports_is_there() -> None:
    found = re.findall(r"from (openloop[\w.]*) import (\w+)", (HOME / "Makefile").read_text())
    assert found
    for module, name in found:
        assert hasattr(importlib.import_module(module), name), f"make asks for {module}.{name}"
