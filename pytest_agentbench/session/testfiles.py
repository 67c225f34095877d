"""What test files do, as far as their text tells: whether their tests only read rollouts. Nothing is imported."""

from __future__ import annotations

import ast
import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

#: Fixtures that neither wait for anything but a rollout nor call a model: ours, and those of pytest.
READING = frozenset(
    [
        *("rollout", "scenario", "thresholds", "suite"),
        *("cache", "capfd", "capsys", "caplog", "monkeypatch", "pytestconfig", "record_property", "recwarn", "subtests", "tmp_path"),
    ]
)

#: Modules with which a test looks at what it has read. With any other one it may wait, compute, or call a model.
LOOKING = frozenset(
    [
        *("__future__", "pytest", "pytest_agentbench"),
        *("abc", "collections", "contextlib", "copy", "dataclasses", "datetime", "decimal", "difflib", "enum", "fractions", "functools"),
        *("itertools", "json", "math", "operator", "pathlib", "re", "statistics", "string", "textwrap", "types", "typing", "unicodedata"),
    ]
)

#: How the names of hooks begin with which a conftest.py makes other tests, or does something around each.
AROUND_TESTS = ("pytest_collect_", "pytest_fixture_", "pytest_generate_", "pytest_pycollect_", "pytest_pyfunc_", "pytest_runtest")

SETUPS = ("setup_", "teardown_")  # pytest calls functions with such names

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Fixture:
    """A fixture that a file defines."""

    asks: frozenset[str]  # names of fixtures
    own: bool  # of each test: not of a module, or of the session
    autouse: bool


@dataclass(frozen=True)
class FileContents:
    """What is in a test file or a conftest.py."""

    looks: bool  # whether its code only looks at things
    around: bool  # whether it has hooks around tests
    asks: frozenset[str]  # names of fixtures that its tests ask for
    parameters: frozenset[str]
    fixtures: Mapping[str, Fixture]


def only_reads(file: Path, conftests: Sequence[Path], functions: Sequence[str]) -> bool:
    """Whether the tests of a file do nothing but read rollouts; False where that cannot be seen.

    `conftests` are those that apply to it, outermost first; `functions` are pytest's patterns of the names of tests.
    """
    try:
        own = contents(file, functions)
        applied = [*(contents(each, functions) for each in conftests), own]
    except (OSError, SyntaxError, ValueError):  # pytest will say what is wrong with it
        return False
    if not own.looks or any(each.around for each in applied):
        return False
    defined = {name: (fixture, each.looks) for each in applied for name, fixture in each.fixtures.items()}
    left = [*own.asks, *(name for name, (fixture, _) in defined.items() if fixture.autouse)]
    visited: set[str] = set()
    while left:
        name = left.pop()
        if name in defined and name not in visited:
            fixture, looks = defined[name]
            if not (fixture.own and looks):
                return False
            visited.add(name)
            left += fixture.asks
        elif name not in READING | own.parameters | visited:
            return False
    return True


def contents(file: Path, functions: Sequence[str]) -> FileContents:
    """Raises SyntaxError or ValueError for a file that is no Python, OSError for one that cannot be read."""
    nodes = [*_running(ast.parse(file.read_bytes(), str(file)))]
    defined = [node for node in nodes if isinstance(node, FunctionNode)]
    fixtures = [(node, decorator) for node in defined if (decorator := _fixture_decorator(node)) is not None]
    others = [node for node in defined if _fixture_decorator(node) is None]
    tests = [node for node in others if any(node.name.startswith(each) or fnmatch.fnmatch(node.name, each) for each in functions)]
    return FileContents(
        looks=all(map(_looks, nodes)),
        around=any(node.name.startswith(AROUND_TESTS) for node in others),
        asks=frozenset().union(*map(_arguments, tests), _words(nodes, "usefixtures", every=True)),
        parameters=_words(nodes, "parametrize"),
        fixtures=dict(_fixture(node, decorator) for node, decorator in fixtures),
    )


def _running(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes below, without blocks that only type checkers see."""
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING"):
            yield child
            yield from _running(child)


def _looks(node: ast.AST) -> bool:
    match node:
        case ast.Import():
            return all(alias.name.partition(".")[0] in LOOKING for alias in node.names)
        case ast.ImportFrom():
            return node.level == 0 and (node.module or "").partition(".")[0] in LOOKING
        case ast.AsyncFunctionDef():
            return False
        case ast.FunctionDef():
            return not node.name.startswith(SETUPS)
        case ast.ClassDef():
            return not node.bases  # what it inherits stands elsewhere
    return True


def _arguments(function: FunctionNode) -> frozenset[str]:
    """The fixtures that a function's signature asks for; an argument with a default is none."""
    plain = [*function.args.posonlyargs, *function.args.args]
    required = plain[: len(plain) - len(function.args.defaults)]
    required += [argument for argument, default in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True) if default is None]
    return frozenset(argument.arg for argument in required) - {"self", "cls"}


def _fixture_decorator(function: FunctionNode) -> ast.expr | None:
    """The decorator that makes a function a fixture: `pytest.fixture`, `fixture(...)` or `pytest_asyncio.fixture`."""
    return next((each for each in function.decorator_list if _name(each.func if isinstance(each, ast.Call) else each) == "fixture"), None)


def _fixture(function: FunctionNode, decorator: ast.expr) -> tuple[str, Fixture]:
    keywords = {each.arg: each.value for each in decorator.keywords} if isinstance(decorator, ast.Call) else {}
    values = {key: value.value if isinstance(value, ast.Constant) else ... for key, value in keywords.items()}
    name = values.get("name") or function.name
    own = values.get("scope", "function") == "function"
    return str(name), Fixture(_arguments(function), own, autouse=values.get("autouse", False) is not False)


def _words(nodes: Sequence[ast.AST], mark: str, *, every: bool = False) -> frozenset[str]:
    """The names that the first argument, or every argument, of a mark's calls has: `"a, b"` or `["a", "b"]`."""
    calls = [node for node in nodes if isinstance(node, ast.Call) and _name(node.func) == mark]
    arguments = [each for call in calls for argument in (call.args if every else call.args[:1]) for each in ast.walk(argument)]
    texts = [each.value for each in arguments if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    return frozenset(name.strip() for text in texts for name in text.split(","))


def _name(node: ast.expr) -> str:
    """The last part of a dotted name."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
