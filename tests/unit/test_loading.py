"""Names in a YAML become Python objects."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.loading import is_import_path, load_object

KNOWN = {"path": "pathlib:Path", "lost": "pathlib:Lost"}


@pytest.fixture(autouse=True)
def _modules_are_forgotten() -> Iterator[None]:
    """Modules that a test imports from its files are not kept for the next one."""
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def suite_with(folder: Path, code: str, name: str = "agent.py") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(code)
    return folder


def test_names_and_import_paths(tmp_path: Path) -> None:
    """A known name, a module and a file of the suite lead to the object; a colon makes an import path."""
    suite_with(tmp_path, "class Agent: ...")

    assert load_object("agent", "path", KNOWN, tmp_path) is Path
    assert load_object("agent", "pathlib:Path", {}, tmp_path) is Path
    assert "Agent" == load_object("agent", "./agent.py:Agent", {}, tmp_path).__name__
    assert (True, True, False) == (is_import_path("a.b:c"), is_import_path("./a.py:c"), is_import_path("tool_calling"))


def test_two_suites_may_have_an_agent(tmp_path: Path) -> None:
    """`./agent.py` is each suite's own, whatever was imported first; loading it again does not run it again."""
    code = "import sys\nclass Agent:\n    home = {!r}\nassert sys.modules[Agent.__module__].Agent is Agent"
    one, two = (suite_with(tmp_path / name, code.format(name)) for name in ("one", "two"))

    agents = [load_object("agent", "./agent.py:Agent", {}, folder) for folder in (one, two, one)]

    assert ["one", "two", "one"] == [agent.home for agent in agents]
    assert agents[0] is agents[2]


def test_an_unknown_name() -> None:
    """A name that is neither known nor an import path is answered with both."""
    with pytest.raises(ConfigError, match=r"^no agent 'pth'; known: lost, path, or an import path such as my_package\.agents:pth$"):
        load_object("agent", "pth", KNOWN, Path())


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("no_such_package.agents:Agent", "ModuleNotFoundError(\"No module named 'no_such_package'\")"),
        ("pathlib:Lost", "AttributeError(\"module 'pathlib' has no attribute 'Lost'\")"),
        ("lost", "AttributeError(\"module 'pathlib' has no attribute 'Lost'\")"),
        ("pathlib:", "AttributeError(\"module 'pathlib' has no attribute ''\")"),
        ("./missing.py:Agent", "FileNotFoundError('there is no file {folder}/missing.py')"),
        ("./broken.py:Agent", "SyntaxError("),
        ("./failing.py:Agent", "ZeroDivisionError('division by zero')"),
        ("./ending.py:Agent", "SystemExit(3)"),
    ],
)
def test_what_cannot_be_loaded(tmp_path: Path, name: str, reason: str) -> None:
    """An import path that leads nowhere, or to code that fails or ends the process, is a sentence with the reason; again and again."""
    suite_with(tmp_path, "class", "broken.py")
    suite_with(tmp_path, "1 / 0", "failing.py")
    suite_with(tmp_path, "import sys\nsys.exit(3)", "ending.py")
    before = set(sys.modules)

    for _ in range(2):
        with pytest.raises(ConfigError) as caught:
            load_object("agent", name, KNOWN, tmp_path)

        assert str(caught.value).startswith(f"agent {name!r} cannot be loaded: {reason.format(folder=tmp_path)}")
    assert not [module for module in set(sys.modules) - before if module.startswith("agentbench_")]
