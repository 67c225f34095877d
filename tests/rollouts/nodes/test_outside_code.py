"""Code that suites use from outside their folders is found without importing it, and compared on the node."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_agentbench.rollouts.nodes.outside_code import outside_code, outside_problem
from pytest_agentbench.rollouts.nodes.suite_files import at_node, code_problem, pack, unpack
from pytest_agentbench.suites.suite import PoolSuite
from tests.rollouts.nodes.test_suite_files import AGENT, a_suite, settings_of, write

NEVER = "raise SystemExit('this must not be imported')\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder on `sys.path`, in which suites and modules are."""
    root = tmp_path / "project"
    root.mkdir()
    monkeypatch.setattr(sys, "path", [str(root), *sys.path])
    return root


def used(project: Path, files: Mapping[str, str], kind: str = "./agent.py:run") -> set[str]:
    """Returns the names of the code that a suite with these files uses from outside."""
    return {*outside_code({"shop": a_suite(project / "scenarios" / "shop", files, kind)})}


def test_a_module_that_the_suite_names(project: Path) -> None:
    """A module in the settings stands for its outermost package, whose Python files are hashed and not imported."""
    write(project, {"ours/__init__.py": NEVER, "ours/agents.py": NEVER, "ours/deep/more.py": "", "ours/prompt.txt": "1"})
    suite = a_suite(project / "shop", {"x.txt": ""}, "ours.agents:run")
    before = outside_code({"shop": suite})
    write(project, {"ours/prompt.txt": "2"})
    unchanged = outside_code({"shop": suite})
    write(project, {"ours/deep/more.py": "X = 1"})

    assert {"ours"} == {*before}
    assert before == unchanged
    assert before != outside_code({"shop": suite})


@pytest.mark.parametrize(
    "changes",
    [
        {"variants": {"v": {"kind": "ours:run"}}},
        {"agent": {"kind": "orchestrator", "wraps": "ours:run"}},
        {"agent": {"kind": "orchestrator", "wraps": {"kind": "ours:run"}}},
        {"tools": {"default": {"kind": "python", "module": "ours:Bank"}}},
        {"scorers": {"ours:kind": {}}},
    ],
)
def test_each_place_of_a_name(project: Path, changes: dict[str, object]) -> None:
    """Agents of variants, wrapped agents, tools and scorers are found. Texts that only look like import paths are ignored."""
    write(project, {"ours.py": NEVER})
    suite = replace(a_suite(project / "shop", {"agent.py": AGENT}), **changes)  # type: ignore[arg-type]
    odd = replace(
        suite, limits={}, variants={**suite.variants, "odd": {"model": "llama3:latest", "system_prompt": "See http://x:y/z or json:loads"}}
    )

    assert {"ours"} == {*outside_code({"shop": suite})} == {*outside_code({"shop": odd})}


def test_modules_that_files_import(project: Path) -> None:
    """The files of a suite are followed to modules of the project, also inside functions. Installed packages and Python's are left out."""
    write(
        project,
        {"near.py": "", "far/__init__.py": "", "far/deep.py": "", "checked.py": "", "lazy.py": "", "unread.py": "", "shared/one.py": ""},
    )
    files = {
        "agent.py": "import json, orjson, no_such_module, near, pytest_agentbench\nfrom helpers import x\nfrom shared import one\n",
        "helpers.py": "if TYPE_CHECKING:\n    import checked\nelse:\n    from far import deep\ndef x():\n    import lazy\n",
        "script.py": "import unread\n",
    }

    assert {"near", "far", "lazy", "shared.one"} == used(project, files)


def test_modules_that_travel(project: Path) -> None:
    """Modules in the folders of the session's suites travel, so they are not outside code, but what they import is. Of a package that
    contains the suite, other modules are compared one by one.
    """
    package = {
        "scenarios/__init__.py": "",
        "scenarios/shop/__init__.py": "",
        "scenarios/common.py": "",
        "scenarios/other.py": "",
        "far.py": "",
    }
    write(project, package)
    files = {"agent.py": "from .helpers import x\nfrom .. import common\n", "helpers.py": "import far\n"}

    assert {"far", "scenarios.common"} == used(project, files, "scenarios.shop.agent:run")


def test_a_file_with_an_absolute_path(project: Path, tmp_path: Path) -> None:
    """A Python file that a suite names with an absolute path has to be at the same path on the node."""
    file = write(tmp_path / "opt", {"agent.py": AGENT}) / "agent.py"
    hashes = outside_code({"shop": a_suite(project / "shop", {"x.txt": ""}, f"{file}:run")})

    assert {str(file)} == {*hashes}
    assert "" == outside_problem(hashes, sys.path, "n1")
    file.write_text("")
    assert f"the node n1 has another version of {file}, which" in outside_problem(hashes, sys.path, "n1")
    file.unlink()
    assert f"the node n1 lacks {file}, which" in outside_problem(hashes, sys.path, "n1")


def test_the_comparison_on_a_node(project: Path, tmp_path: Path) -> None:
    """A node where code is missing or different gets a sentence that names node and modules. Where it is found does not matter."""
    write(project, {"near.py": "", "far/__init__.py": "", "far/deep.py": "X = 1"})
    suite = a_suite(project / "shop", {"agent.py": "import near\n" + AGENT}, "./agent.py:run")
    suite = replace(suite, scorers={"far.deep:kind": {}})
    node, installed = tmp_path / "node", tmp_path / "site-packages"
    unpack(pack({"shop": suite}), node)
    here = at_node(settings_of(suite), node, None)

    def problem(path: Path) -> str:
        return code_problem(replace(here, sys_path=(*(each for each in here.sys_path if each != str(project)), str(path))), node, "n1")

    assert "the node n1 lacks far, near, which suites of this session use from outside their folders: install" in problem(installed)
    write(installed, {"far/__init__.py": "", "far/deep.py": "X = 2"})
    assert "the node n1 lacks near and has another version of far, which suites" in problem(installed)
    write(installed, {"near.py": "", "far/deep.py": "X = 1"})
    assert "" == problem(installed) == problem(project)


def test_suites_of_this_project() -> None:
    """A suite whose code imports only installed packages uses no outside code."""
    folder = Path(__file__).parents[3] / "scenarios" / "banking"
    suite = PoolSuite("banking", folder, (), {"kind": "react"}, tools={"default": {"kind": "python", "module": "./bank.py:Bank"}})

    assert {} == outside_code({"banking": suite})
