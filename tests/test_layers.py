"""The table of layers in ARCHITECTURE.md is true."""

from __future__ import annotations

import ast
import functools
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path

import pytest

import pytest_agentbench

PACKAGE = Path(pytest_agentbench.__file__).parent
TEXT = (PACKAGE.parent / "ARCHITECTURE.md").read_text(encoding="utf-8")


def module_name(file: Path) -> str:
    """Returns `tap.relay` for tap/relay.py, `tap` for tap/__init__.py, `__init__` for the package's own."""
    parts = file.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and parts[1:] else parts)


FILES = {module_name(file): file for file in sorted(PACKAGE.rglob("*.py")) if "shipped" not in file.parts}


@functools.cache
def tree_of(module: str) -> ast.Module:
    return ast.parse(FILES[module].read_text(encoding="utf-8"))


#: The layers from bottom to top. Each row of the table is a layer: a folder or some files.
LAYERS = [
    re.findall(r"`([^`]+)`", cell)
    for cell in re.findall(r"^\| ((?:`\w+/?` ?)+) \|", TEXT.partition("| layer | is |")[2].partition("\n\n")[0], re.MULTILINE)
]

#: Layers that import pytest.
TOP = ("session/", "plugin", "cli/")


def covers(entry: str, module: str) -> bool:
    return f"{module}.".startswith(entry.replace("/", ".")) if entry.endswith("/") else module == entry


def level_of(module: str) -> int:
    """Returns the number of a module's layer, counted from the bottom."""
    return next(level for level, layer in enumerate(LAYERS) if any(covers(entry, module) for entry in layer))


def imports(module: str) -> Iterator[tuple[int, str]]:
    """Yields (line, dotted name) of everything that a module imports at run time, including imports in functions and paths in
    registries.
    """
    for node in running(tree_of(module)):
        match node:
            case ast.Import():
                yield from ((node.lineno, alias.name) for alias in node.names)
            case ast.ImportFrom():
                assert not node.level, f"{module}:{node.lineno}: imports are absolute here"
                yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
            case ast.Constant(value=str(text)) if re.fullmatch(r"pytest_agentbench[\w.]*:\w+", text):
                yield node.lineno, text.replace(":", ".")


def statements(tree: ast.AST) -> Iterator[str]:
    """Yields dotted names in all import statements, including those in functions and for type checkers."""
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                yield from (alias.name for alias in node.names)
            case ast.ImportFrom():
                yield from (f"{node.module}.{alias.name}" for alias in node.names)


def circle(trees: Mapping[str, ast.AST]) -> list[str]:
    """Returns modules each of which imports the next, the first one again at the end. Returns none if there is no such circle."""
    known = {name: {own_module(each) for each in statements(tree)} - {None, name} for name, tree in trees.items()}
    try:
        TopologicalSorter(known).prepare()
    except CycleError as error:
        return [*reversed(error.args[1])]
    return []


def running(node: ast.AST) -> Iterator[ast.AST]:
    """Yields the nodes below a node, without blocks that only type checkers see."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING":
            continue
        yield child
        yield from running(child)


def own_module(name: str) -> str | None:
    """Returns the module of ours that contains an imported name, or None if the name belongs to another package."""
    parts = name.split(".")
    if parts[0] != "pytest_agentbench":
        return None
    return next((".".join(parts[1:end]) for end in range(len(parts), 1, -1) if ".".join(parts[1:end]) in FILES), "__init__")


def test_every_module_has_a_layer() -> None:
    """Every file belongs to a layer, and no layer is empty."""
    listed = [entry for layer in LAYERS for entry in layer]

    assert dict.fromkeys(FILES, 1) == {name: sum(covers(entry, name) for entry in listed) for name in FILES}
    assert [] == [entry for entry in listed if not any(covers(entry, name) for name in FILES)]


@pytest.mark.parametrize("module", FILES)
def test_imports_go_down(module: str) -> None:
    """A file imports only from its own layer or from those below, also for type checkers. The public names come from everywhere."""
    level = level_of(module)
    names = {name for _, name in imports(module)} | ({*statements(tree_of(module))} if module != "__init__" else set())

    assert set() == {name for name in names if (own := own_module(name)) and level_of(own) > level}


def test_no_circles() -> None:
    """No modules import each other in a circle, not even inside a function or for type checkers.

    A path in a registry is not an import: its entries are loaded by name, like a user's own code.
    """
    assert [] == circle({name: tree_of(name) for name in FILES})


def test_a_circle_is_named() -> None:
    """An import inside a function and one for type checkers form a circle, and its modules are named."""
    names = dict(zip(("lib.redact", "lib.foreign", "lib.wire"), ("foreign", "wire", "redact"), strict=True))
    shapes = (
        "import pytest_agentbench.lib.{}",
        "def f():\n    from pytest_agentbench.lib import {}",
        "if TYPE_CHECKING:\n    from pytest_agentbench.lib.{} import x",
    )
    trees = {name: ast.parse(shape.format(other)) for (name, other), shape in zip(names.items(), shapes, strict=True)}

    found = circle(trees)

    assert {*names} == {*found}
    assert found[0] == found[-1]
    assert all(names[one] == other.removeprefix("lib.") for one, other in pairwise(found))
    assert [] == circle({**trees, "lib.wire": ast.parse("'pytest_agentbench.lib.redact:x'")})


@pytest.mark.parametrize("module", [name for name in FILES if not any(covers(entry, name) for entry in TOP)])
def test_only_the_top_layers_import_pytest(module: str) -> None:
    """All layers below the top ones run without pytest."""
    assert set() == {(line, name) for line, name in imports(module) if name.split(".")[0] in ("pytest", "_pytest", "pluggy", "xdist")}


def test_registries_lead_somewhere() -> None:
    """The import paths in registries exist."""
    paths = [
        node.value
        for tree in map(tree_of, FILES)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"pytest_agentbench[\w.]*:\w+", node.value)
    ]

    assert 8 <= len(paths)
    for path in paths:
        module, _, name = path.removeprefix("pytest_agentbench.").partition(":")
        assert name in {getattr(node, "name", None) for node in tree_of(module).body}


def test_the_walk_sees_everything() -> None:
    """The import walk finds imports inside functions, of modules and of names, also in registries, but not those for type checkers."""
    assert {"pytest_agentbench.session.settings.add_options", "pytest_agentbench.session.hookspecs"} <= {
        name for _, name in imports("plugin")
    }
    assert "pytest_agentbench.agents.tool_calling.ToolCalling" in {name for _, name in imports("agents")}
    assert "pytest_agentbench.backends.backend.Backend" not in {name for _, name in imports("session.hookspecs")}
    assert ("records", "rollouts.pool.scheduler", "__init__", None) == tuple(
        own_module(name)
        for name in (
            "pytest_agentbench.records.Json",
            "pytest_agentbench.rollouts.pool.scheduler",
            "pytest_agentbench.Rollout",
            "pytest.fixture",
        )
    )


def test_a_session_imports_no_kind_of_backend() -> None:
    """A session uses all backends in the same way. Only setup imports the class for arms."""
    kinds = re.compile(r"pytest_agentbench\.backends\.(embedded|url|stack|ab)\b")
    named = {(module, name) for module in FILES if module.startswith("session.") for _, name in imports(module) if kinds.match(name)}

    assert {("session.setup", "pytest_agentbench.backends.ab.Arms")} == named


#: Names that Harbor prescribes, because it loads these two by name.
OF_HARBOR = {"harbor.agent", "harbor.environment"}


def nouns(tree: ast.Module) -> Iterator[str]:
    """Yields the names of a module's classes and types, except for type variables, which are not imported."""
    for node in tree.body:
        match node:
            case ast.ClassDef():
                yield node.name
            case ast.Assign(targets=[ast.Name(id=name)], value=value) | ast.AnnAssign(target=ast.Name(id=name), value=value):
                if re.match(r"[A-Z][a-z]", name) and not (isinstance(value, ast.Call) and ast.unparse(value.func) == "TypeVar"):
                    yield name


def test_one_noun_is_one_class() -> None:
    """No two classes or types have the same name, so that a name is clear without its file."""
    places = defaultdict(list)
    for name in FILES.keys() - OF_HARBOR:
        for noun in nouns(tree_of(name)):
            places[noun].append(name)

    assert {} == {noun: modules for noun, modules in places.items() if len(modules) > 1}
