"""Inspecting tests, options and fixtures starts nothing and needs no network."""

from __future__ import annotations

import pytest

from tests.project import Project

#: A root conftest that records every process that is started and every socket that is used.
WATCHFUL = """
import pathlib
import sys

SEEN = pathlib.Path(__file__).with_name("seen.txt")
SEEN.touch()


def watch(event, arguments):
    if event in ("subprocess.Popen", "os.posix_spawn", "os.fork", "socket.bind", "socket.connect"):
        with SEEN.open("a") as seen:
            seen.write(event + "\\n")


sys.addaudithook(watch)
"""

LOOKS = {
    "collect": (("--co", "-q"), "scenarios/shop/test_shop.py::test_tools[[]shop-2[]]"),
    "collect-n2": (("--co", "-q", "-n", "2"), "scenarios/shop/test_shop.py::test_tools[[]shop-2[]]"),
    "fixtures": (("--fixtures",), "    The finished rollout of this test's scenario: *"),
    "fixtures-per-test": (("--fixtures-per-test",), "*fixtures used by test_tools*"),
    "setup-plan": (("--setup-plan",), "*test_shop.py::test_tools[[]shop-2[]] (fixtures used: *"),
    "setup-plan-n2": (("--setup-plan", "-n", "2"), "*shop*"),
    "markers": (("--markers",), "@pytest.mark.shop: *"),
    "help": (("-h",), "*--agentbench-backend=NAME*"),
    "cache": (("--cache-show",), "cachedir: *"),
    "version": (("-VV",), "*pytest-agentbench-*"),
}


@pytest.mark.slow
@pytest.mark.parametrize("look", LOOKS)
def test_inspecting_starts_nothing(project: Project, look: str) -> None:
    """Each inspecting option prints what it should, starts no process, opens no connection and leaves no run directory."""
    options, shown = LOOKS[look]
    project.suite(scenarios=3)
    project.write("conftest.py", WATCHFUL)

    result = project.run(*options, "scenarios/shop")

    assert 0 == result.ret
    result.stdout.fnmatch_lines([shown])
    assert not (project.root / "reports").exists()
    if "-n" not in options or "--co" in options:
        assert "" == (project.root / "seen.txt").read_text()


def test_the_audit_hook_sees_a_run(project: Project) -> None:
    """The audit hook of the test above works: it records the processes and connections of a run."""
    project.suite(scenarios=1)
    project.write("conftest.py", WATCHFUL)

    project.run("scenarios/shop").assert_outcomes(passed=1)

    assert {"subprocess.Popen", "socket.connect"} <= set((project.root / "seen.txt").read_text().split())


@pytest.mark.slow
def test_collecting_needs_no_backend(project: Project) -> None:
    """`--co` lists the tests of a suite even if its backend does not exist."""
    project.suite(scenarios=2)

    result = project.run("--co", "-q", "--agentbench-backend=http://127.0.0.1:9/v1", "scenarios/shop")

    assert 0 == result.ret
    result.stdout.fnmatch_lines(["*test_tools[[]shop-0[]]", "*test_tools[[]shop-1[]]"])


@pytest.mark.slow
def test_every_fixture_has_a_docstring(project: Project) -> None:
    """`pytest --fixtures` explains each fixture of the plugin, if there is a suite."""
    project.suite(scenarios=1)

    result = project.run("--fixtures", "scenarios/shop")

    listed = result.stdout.str()
    for name in ("rollout", "scenario", "thresholds", "suite", "backend", "llm"):
        assert f"\n{name} -- " in listed
    result.stdout.fnmatch_lines(["*fixtures defined from pytest_agentbench.session.fixtures*"])
    assert "no docstring available" not in listed.split("fixtures defined from pytest_agentbench.session.fixtures")[1].split("------")[1]


@pytest.mark.slow
def test_a_run_without_a_suite_starts_nothing(project: Project) -> None:
    """In a project without suites the plugin prints nothing and leaves no directory."""
    project.write("test_other.py", "def test_nothing():\n    pass\n")

    result = project.run("test_other.py")

    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*agentbench:*")
    assert not (project.root / "reports").exists()


@pytest.mark.slow
def test_a_run_that_selects_no_rollout_leaves_nothing(project: Project) -> None:
    """If no test is selected, no run directory is left."""
    project.suite(scenarios=2)

    result = project.run("-k", "nothing_of_this_name", "scenarios/shop")

    assert pytest.ExitCode.NO_TESTS_COLLECTED == result.ret
    assert [".gitignore"] == [path.name for path in (project.root / "reports").iterdir()]
