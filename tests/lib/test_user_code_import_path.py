"""Names and import paths in a YAML file are resolved to Python objects."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

import pytest

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib.user_code import check_takes, is_import_path, load_object, with_options

KNOWN = {"path": "pathlib:Path", "lost": "pathlib:Lost"}

pytestmark = pytest.mark.usefixtures("forgotten_modules")


def suite_with(folder: Path, code: str, name: str = "agent.py") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(code)
    return folder


def test_names_and_import_paths(tmp_path: Path) -> None:
    """A known name, a module and a file of the suite are resolved to the object. A name with a colon is an import path."""
    suite_with(tmp_path, "class Agent: ...")

    assert load_object("agent", "path", KNOWN, tmp_path) is Path
    assert load_object("agent", "pathlib:Path", {}, tmp_path) is Path
    assert "Agent" == load_object("agent", "./agent.py:Agent", {}, tmp_path).__name__
    assert (True, True, False) == (is_import_path("a.b:c"), is_import_path("./a.py:c"), is_import_path("tool_calling"))


def test_two_suites_may_have_an_agent(tmp_path: Path) -> None:
    """`./agent.py` is resolved in each suite's own folder, whatever was imported before. Loading a file again does not run it again."""
    code = "import sys\nclass Agent:\n    home = {!r}\nassert sys.modules[Agent.__module__].Agent is Agent"
    one, two = (suite_with(tmp_path / name, code.format(name)) for name in ("one", "two"))

    agents = [load_object("agent", "./agent.py:Agent", {}, folder) for folder in (one, two, one)]

    assert ["one", "two", "one"] == [agent.home for agent in agents]
    assert agents[0] is agents[2]


def test_an_unknown_name() -> None:
    """The error for a name that is neither known nor an import path mentions both."""
    with pytest.raises(
        ConfigError, match=r"^no agent 'pth' .did you mean 'path'..; known: lost, path, or an import path such as my_package\.agents:pth$"
    ):
        load_object("agent", "pth", KNOWN, Path())


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("no_such_package.agents:Agent", "ModuleNotFoundError: No module named 'no_such_package'"),
        ("pathlib:Lost", "the module does not define 'Lost'; it defines: "),
        ("lost", "the module does not define 'Lost'; it defines: "),
        ("pathlib:", "the module does not define ''; it defines: "),
        ("./missing.py:Agent", "FileNotFoundError: there is no file {folder}/missing.py"),
        ("./broken.py:Agent", "SyntaxError: invalid syntax (broken.py:1)"),
        ("./failing.py:Agent", "ZeroDivisionError: division by zero (failing.py:1)"),
        ("./ending.py:Agent", "SystemExit: 3 (ending.py:2)"),
        ("./skipping.py:Agent", "Skipped: could not import 'no_such_package': No module named 'no_such_package'"),
    ],
)
def test_what_cannot_be_loaded(tmp_path: Path, name: str, reason: str) -> None:
    """If an import path does not exist, or its code fails or ends the process, each attempt raises one sentence with the reason."""
    suite_with(tmp_path, "class", "broken.py")
    suite_with(tmp_path, "import pytest\npytest.importorskip('no_such_package')", "skipping.py")
    suite_with(tmp_path, "1 / 0", "failing.py")
    suite_with(tmp_path, "import sys\nsys.exit(3)", "ending.py")
    before = set(sys.modules)

    for _ in range(2):
        with pytest.raises(ConfigError) as caught:
            load_object("agent", name, KNOWN, tmp_path)

        assert str(caught.value).startswith(f"agent {name!r} cannot be loaded: {reason.format(folder=tmp_path)}")
    assert not [module for module in set(sys.modules) - before if module.startswith("agentbench_")]


def test_a_name_that_a_module_lacks(tmp_path: Path) -> None:
    """The error for a missing name lists the first names of the module. If the module's `__getattr__` fails, the error has its reason."""
    suite_with(tmp_path, "from pathlib import Path\n" + "\n".join(f"def f{number}(): ..." for number in range(13)), "large.py")
    suite_with(tmp_path, "def __getattr__(name):\n    raise ImportError('not\\ntoday')", "lazy.py")
    listed = "the module does not define 'Agent'; it defines: f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, ..."

    for name, reason in (("large", listed), ("lazy", "ImportError: not today (lazy.py:2)")):
        with pytest.raises(ConfigError) as caught:
            load_object("agent", f"./{name}.py:Agent", KNOWN, tmp_path)

        assert f"agent './{name}.py:Agent' cannot be loaded: {reason}" == str(caught.value)


class Methods:
    """Functions with various parameters."""

    def fits(self, scenario: object, llm: object, tools: object) -> None: ...
    def anything(self, *things: object) -> None: ...
    def other_names(self, task: object, model: object, toolbox: object, more: int = 3) -> None: ...
    def too_few(self, scenario: object, llm: object) -> None: ...
    def too_many(self, scenario: object, llm: object, tools: object, more: object) -> None: ...
    def mixed(self, llm: object, scenario: object, tools: object) -> None: ...
    def by_name(self, *, scenario: object, llm: object, tools: object) -> None: ...
    def needs_more(self, scenario: object, llm: object, tools: object, *, more: object) -> None: ...


TAKEN = ("scenario", "llm", "tools")


@pytest.mark.parametrize("name", ["fits", "anything", "other_names"])
def test_a_signature_that_fits(name: str) -> None:
    """A function that accepts this number of arguments is accepted, whatever the names of its parameters are."""
    check_takes("it", getattr(Methods(), name), TAKEN)


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("too_few", ": too many positional arguments"),
        ("too_many", ": missing a required argument: 'more'"),
        ("mixed", ""),
        ("by_name", ": too many positional arguments"),
        ("needs_more", ": missing a required"),
    ],
)
def test_a_signature_that_does_not_fit(name: str, fault: str) -> None:
    """A function that does not take these arguments, or has their names in another order, is refused. The error has its signature."""
    function = getattr(Methods(), name)

    with pytest.raises(ConfigError) as caught:
        check_takes("it", function, TAKEN)

    order = "" if fault else " in this order"
    assert str(caught.value).startswith(f"it should take (scenario, llm, tools){order}, not {inspect.signature(function)}{fault}")


def test_a_function_that_shows_no_signature() -> None:
    """Some functions written in C have no signature, so their options are unknown."""
    with pytest.raises(ConfigError, match=r"^scorer 'max': no signature found for builtin .*; write a function of your own that calls it$"):
        with_options("scorer", "max", max, {})
