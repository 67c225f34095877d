"""The number of xdist workers and of rollouts in flight. tests/acceptance/test_workers.py tests whole sessions."""

from __future__ import annotations

import pytest
from xdist.plugin import pytest_cmdline_main

from pytest_agentbench.plugin import xdist_workers
from pytest_agentbench.rollouts import rollout  # noqa: F401  # Imported once here, because pytester unloads modules after each test.
from pytest_agentbench.session.controller import Controller
from pytest_agentbench.session.settings import read_settings
from pytest_agentbench.session.setup import Workers, choose_workers, find_suites
from tests.project import Project


def chosen(project: Project, *arguments: str) -> tuple[Workers, int]:
    """Returns the numbers of workers and of rollouts in flight for a command line."""
    config = project.pytester.parseconfig(*arguments)
    pytest_cmdline_main(config)  # xdist's hook, which derives --tx from -n
    settings, typed = read_settings(config), xdist_workers(config)
    workers = choose_workers(config, find_suites(config, settings), typed, settings.workers)
    return workers, Controller(config, settings, typed).concurrency


def counted(project: Project, *arguments: str) -> tuple[int, int]:
    workers, concurrency = chosen(project, *arguments)
    return len(workers.specs), concurrency


#: Environment, arguments -> workers, rollouts in flight.
ASKED = {
    "n": ({}, ("-n6",), (1, 6)),
    "PYTEST_ADDOPTS": ({"PYTEST_ADDOPTS": "-n 4"}, (), (1, 4)),
    "auto": ({"PYTEST_XDIST_AUTO_NUM_WORKERS": "4"}, ("-n", "auto"), (1, 4)),
    "auto and maxprocesses": ({"PYTEST_XDIST_AUTO_NUM_WORKERS": "4"}, ("-n", "auto", "--maxprocesses=3"), (1, 3)),
    "literal and maxprocesses": ({}, ("-n4", "--maxprocesses=3", "--agentbench-workers=2"), (2, 3)),
    "literal, more than n": ({}, ("-n2", "--agentbench-workers=3"), (3, 2)),
    "the suite's": ({}, ("-n6", "--agentbench-set", "xdist_workers=4"), (4, 6)),
    "the suite's, more than n": ({}, ("-n2", "--agentbench-set", "xdist_workers=4"), (4, 2)),
    "literal and the suite's": ({}, ("-n6", "--agentbench-set", "xdist_workers=4", "--agentbench-workers=2"), (2, 6)),
    "concurrency": ({}, ("-n2", "--agentbench-concurrency=5"), (1, 5)),
    "tx": ({}, ("--tx", "2*popen", "--dist=load"), (2, 2)),
    "tx and the suite's": ({}, ("--tx", "2*popen", "--dist=load", "--agentbench-set", "xdist_workers=4"), (2, 2)),
    "n over tx": ({}, ("--tx", "2*popen", "-n4"), (1, 4)),
    "one process": ({}, ("-n0", "--agentbench-workers=3"), (0, 8)),
    "loadscope": ({}, ("-n4", "--dist=loadscope"), (1, 4)),
    "loadfile": ({}, ("-n4", "--dist=loadfile"), (1, 4)),
    "loadgroup": ({}, ("-n4", "--dist=loadgroup"), (1, 4)),
    "worksteal": ({}, ("-n4", "--dist=worksteal"), (1, 4)),
    "each": ({}, ("-n2", "--dist=each"), (2, 2)),
}


@pytest.mark.parametrize(("environment", "arguments", "numbers"), ASKED.values(), ids=ASKED)
def test_ways_to_ask(
    project: Project,
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    arguments: tuple[str, ...],
    numbers: tuple[int, int],
) -> None:
    """The numbers follow from -n, --dist and other options. --tx without -n starts the workers that it names."""
    project.suite(scenarios=2)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    assert numbers == counted(project, *arguments, "scenarios/shop")


#: Arguments -> number of workers that start with -n 4.
PATHS = {
    "a suite": (("scenarios/shop",), 1),
    "a file of a suite": (("scenarios/shop/test_shop.py",), 1),
    "a test of a suite": (("scenarios/shop/test_shop.py::test_tools[shop-0]",), 1),
    "a folder in a suite": (("scenarios/shop/more",), 1),
    "a path with dots": (("tests/../scenarios/shop",), 1),
    "above two suites": (("scenarios",), 4),
    "above two suites, one by its name": (("-m", "shop", "scenarios"), 4),
    "above suites and other tests": ((".",), 4),
    "other tests beside a suite": (("scenarios/shop", "tests/test_own.py::test_own"), 4),
    "a suite that asks for two": (("scenarios/chat",), 2),
    "suites that ask for one and for two": (("scenarios/shop", "scenarios/chat"), 2),
    "suites that ask for two and for five": (("scenarios/chat", "scenarios/slow"), 5),
    "above a suite that asks for five": (("scenarios", "--agentbench-set", "xdist_workers=5"), 5),
    "one that asks for five is left out": (("-m", "chat", "scenarios/chat", "scenarios/slow"), 2),
}


@pytest.mark.parametrize(("arguments", "started"), PATHS.values(), ids=PATHS)
def test_paths_and_suites(project: Project, arguments: tuple[str, ...], started: int) -> None:
    """One worker starts if every path is in a suite's folder, else as many as -n. A suite can require more; the largest number counts."""
    project.suite(scenarios=1)
    project.suite("chat", scenarios=1, xdist_workers=2)
    if "scenarios/slow" in arguments:
        project.suite("slow", scenarios=1, xdist_workers=5)
    project.write("scenarios/shop/more/test_more.py", "def test_more(rollout): pass\n")
    project.write("tests/test_own.py", "def test_own(): pass\n")

    assert (started, 4) == counted(project, "-n4", *arguments)


def test_without_a_path(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a path on the command line `testpaths` counts, and without that the folder in which pytest was started."""
    project.suite(scenarios=1)
    project.write("tests/test_own.py", "def test_own(): pass\n")
    assert (2, 2) == counted(project, "-n2")

    project.pytester.makeini("[pytest]\naddopts = --import-mode=importlib -n 2\ntestpaths = scenarios/shop\n")
    assert (1, 2) == counted(project)

    project.pytester.makeini("[pytest]\naddopts = --import-mode=importlib -n 2\n")
    monkeypatch.chdir(project.root / "scenarios" / "shop")
    assert (1, 2) == counted(project)


def test_a_suite_that_cannot_run(project: Project) -> None:
    """A path in the folder of a broken suite counts as being in a suite's folder. The suite's `xdist_workers` is ignored."""
    project.suite(scenarios=1, xdist_workers=3, scorers=["tqs"])

    assert (1, 2) == counted(project, "-n2", "scenarios/shop")


def test_the_ini_file_waits_for_n(project: Project) -> None:
    """--agentbench-workers in the ini file applies only to sessions with -n."""
    project.suite(scenarios=1)
    project.pytester.makeini("[pytest]\naddopts = --import-mode=importlib\nagentbench_workers = 2\n")

    assert (0, 8) == counted(project, "scenarios/shop")
    assert (2, 3) == counted(project, "-n3", "scenarios/shop")


#: Arguments -> header line about the workers.
REASONS = {
    ("-n4", "scenarios/shop"): "1 xdist worker starts: every path is in the folder of a suite (--agentbench-workers=N starts N)",
    ("-n4", "--agentbench-workers=3", "scenarios/shop"): "3 xdist workers start: set by --agentbench-workers",
    ("-n4", "scenarios/chat"): "2 xdist workers start: set by xdist_workers in scenarios/chat/suite.yaml",
    ("-n4", "scenarios/shop", "tests"): (
        "4 xdist workers start: set by -n, because tests is not in the folder of a suite (--agentbench-workers=N starts N)"
    ),
    ("-n2", "--dist=each", "scenarios/shop"): "2 xdist workers start: set by -n; with --dist=each every worker runs all tests",
    ("--tx", "2*popen", "--dist=load", "scenarios/shop"): "",
    ("scenarios/shop",): "",
}


@pytest.mark.parametrize(("arguments", "sentence"), REASONS.items(), ids=map(" ".join, REASONS))
def test_reasons(project: Project, arguments: tuple[str, ...], sentence: str) -> None:
    """The header has the number of workers, and the path, option or file that decided it."""
    project.suite(scenarios=1)
    project.suite("chat", scenarios=1, xdist_workers=2)
    project.write("tests/test_own.py", "def test_own(): pass\n")

    assert sentence == chosen(project, *arguments)[0].sentence
