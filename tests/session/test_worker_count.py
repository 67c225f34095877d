"""How many xdist workers start, and how many rollouts are in flight; tests/acceptance/test_readers.py has whole sessions."""

from __future__ import annotations

import pytest
from xdist.plugin import pytest_cmdline_main

from pytest_agentbench.plugin import xdist_workers
from pytest_agentbench.rollouts import rollout  # noqa: F401  # before any pytester, which forgets modules and would load it for each test
from pytest_agentbench.session.controller import Controller
from pytest_agentbench.session.settings import read_settings
from pytest_agentbench.session.setup import find_suites
from pytest_agentbench.session.worker_count import readers
from tests.project import Project

CALLS = "def test_chat(llm): pass\n"  # a test of a suite that calls models itself


def counted(project: Project, *arguments: str) -> tuple[int, int]:
    """Workers that would start with this command line, and rollouts that would be in flight."""
    config = project.pytester.parseconfig(*arguments)
    pytest_cmdline_main(config)  # xdist's own: it makes --tx of -n
    settings, typed = read_settings(config), xdist_workers(config)
    started = readers(config, find_suites(config, settings), typed, settings.workers)
    return len(started), Controller(config, settings, typed).concurrency


#: Environment, arguments -> workers, rollouts in flight.
ASKED = {
    "n": ({}, ("-n6",), (1, 6)),
    "PYTEST_ADDOPTS": ({"PYTEST_ADDOPTS": "-n 4"}, (), (1, 4)),
    "auto": ({"PYTEST_XDIST_AUTO_NUM_WORKERS": "4"}, ("-n", "auto"), (1, 4)),
    "auto and maxprocesses": ({"PYTEST_XDIST_AUTO_NUM_WORKERS": "4"}, ("-n", "auto", "--maxprocesses=3"), (1, 3)),
    "literal and maxprocesses": ({}, ("-n4", "--maxprocesses=3", "--agentbench-workers=2"), (2, 3)),
    "literal, more than n": ({}, ("-n2", "--agentbench-workers=3"), (3, 2)),
    "concurrency": ({}, ("-n2", "--agentbench-concurrency=5"), (1, 5)),
    "tx": ({}, ("--tx", "2*popen", "--dist=load"), (2, 2)),
    "n over tx": ({}, ("--tx", "2*popen", "-n4"), (1, 4)),
    "one process": ({}, ("-n0", "--agentbench-workers=3"), (0, 8)),
    "loadscope": ({}, ("-n4", "--dist=loadscope"), (1, 4)),
    "loadfile": ({}, ("-n4", "--dist=loadfile"), (1, 4)),
    "loadgroup": ({}, ("-n4", "--dist=loadgroup"), (1, 4)),
    "worksteal": ({}, ("-n4", "--dist=worksteal"), (1, 4)),
    "each": ({}, ("-n2", "--dist=each"), (2, 2)),
    "doctests": ({}, ("-n2", "--doctest-modules"), (2, 2)),
}


@pytest.mark.parametrize(("environment", "arguments", "numbers"), ASKED.values(), ids=ASKED)
def test_ways_to_ask(
    project: Project,
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    arguments: tuple[str, ...],
    numbers: tuple[int, int],
) -> None:
    """However -n is given, and however tests are distributed; --tx without -n names its workers, which start."""
    project.suite(scenarios=2)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    assert numbers == counted(project, *arguments, "scenarios/shop")


@pytest.mark.parametrize(
    ("arguments", "started"),
    [
        (("scenarios/shop",), 1),
        (("scenarios/shop", "tests"), 2),
        ((".",), 2),
        (("scenarios",), 2),
        (("-m", "shop", "scenarios"), 1),
        (("-m", "not nothing", "scenarios"), 2),
    ],
    ids=["readers", "tests beside the suites", "above the suites", "a suite that calls models", "not selected", "selected by no name"],
)
def test_other_tests_keep_what_was_typed(project: Project, arguments: tuple[str, ...], started: int) -> None:
    """Where a path leads to a test that is not known to only read rollouts, all start; a suite that -m leaves out does not count."""
    project.suite(scenarios=1)
    project.suite("chat", scenarios=1, test=CALLS)
    project.write("tests/test_own.py", "def test_own(): pass\n")

    assert (started, 2) == counted(project, "-n2", *arguments)


def test_a_suite_that_runs_only_when_named(project: Project) -> None:
    """Its tests that call models count although no suite of theirs is selected by its name alone."""
    project.suite(scenarios=1)
    project.suite("chat", scenarios=1, test=CALLS, only_when_named=True)

    assert (2, 2) == counted(project, "-n2", "-m", "not nothing", "scenarios")


def test_without_a_path(project: Project) -> None:
    """Without a path `testpaths` decides, and where there is none, the folder that pytest was started in."""
    project.suite(scenarios=1)
    project.write("tests/test_own.py", "def test_own(): pass\n")
    assert (2, 2) == counted(project, "-n2")

    project.pytester.makeini("[pytest]\naddopts = --import-mode=importlib -n 2\ntestpaths = scenarios\n")
    assert (1, 2) == counted(project)


def test_the_ini_file_waits_for_n(project: Project) -> None:
    """--agentbench-workers in the ini file is for sessions with -n."""
    project.suite(scenarios=1)
    project.pytester.makeini("[pytest]\naddopts = --import-mode=importlib\nagentbench_workers = 2\n")

    assert (0, 8) == counted(project, "scenarios/shop")
    assert (2, 3) == counted(project, "-n3", "scenarios/shop")
