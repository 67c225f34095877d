"""The line below pytest's dots: on a terminal while rollouts run, and nowhere else."""

from __future__ import annotations

import re

import pytest

from pytest_agentbench.serving.process import child_environment
from tests.project import FIND_THEN_ANSWER, PYTEST, Project
from tests.terminal import Screen, run_on_terminal

WAYS = pytest.mark.parametrize("way", [(), ("-n", "2", "--agentbench-workers=2", "--agentbench-concurrency=8")], ids=["one-process", "n2"])

#: shop-0 is done at once, the others take long enough for the line to be drawn.
UNEVEN = [{"match": {"contains": "shop-0"}, "text": "No."}, *({"ttft_ms": 900, **rule} for rule in FIND_THEN_ANSWER)]


def run(project: Project, *arguments: str) -> tuple[int, str]:
    return run_on_terminal([*PYTEST, *arguments], project.root, child_environment())


@WAYS
@pytest.mark.parametrize("verbosity", [(), ("-v",)], ids=["dots", "verbose"])
def test_a_line_of_progress(project: Project, way: tuple[str, ...], verbosity: tuple[str, ...]) -> None:
    """It says how many of how many are done, the mean so far, the speed and the time to go; in the end it is gone and nothing else is."""
    project.suite(scenarios=3)
    project.backend(UNEVEN)

    status, written = run(project, *way, *verbosity, "scenarios/shop")

    assert pytest.ExitCode.TESTS_FAILED == status
    assert "agentbench 1/3 · tsq 0.000 · " in written
    assert " tok/s · " in written
    assert " s to go" in written
    shown = str(Screen(written))
    assert "1/3" not in shown
    assert "to go" not in shown
    for line in ("test session starts", "agentbench: suites shop (3 scenarios)", "rollouts    3 ok", "1 failed, 2 passed"):
        assert 1 == shown.count(line)
    if verbosity:
        assert 3 == sum("%]" in line and "test_tools[shop-" in line for line in shown.splitlines())
    elif not way:
        assert re.search(r"^scenarios/shop/test_shop\.py F\.\. +\[100%\]$", shown, re.MULTILINE)


SLOW = """
import time

def test_slow(rollout):
    time.sleep(1.2)
    print("in the test")
    assert rollout.scenario != "shop-0"
"""


def test_progress_stays_out_of_captured_output(project: Project) -> None:
    """The line is drawn while a test runs whose output is captured, and does not end up in it."""
    project.suite(scenarios=3, test=SLOW)
    project.backend(UNEVEN)

    _, written = run(project, "scenarios/shop")

    assert "agentbench 1/3" in written
    shown = str(Screen(written))
    assert re.search(r"-+ Captured stdout call -+\nin the test\n", shown)
    assert "1/3" not in shown


@pytest.mark.parametrize("option", ["-q", "-s", "--agentbench-inline"])
def test_no_progress_where_it_is_not_wanted(project: Project, option: str) -> None:
    """-q is quiet, and with -s and inline the terminal belongs to the tests and to debuggers."""
    project.suite(scenarios=3)
    project.backend(UNEVEN)

    _, written = run(project, option, "scenarios/shop")

    assert "agentbench 1/3" not in written
    assert "tok/s · " not in written


@WAYS
def test_no_progress_in_a_pipe(project: Project, way: tuple[str, ...]) -> None:
    """Where the output is no terminal there is no line of progress and no control sequence."""
    project.suite(scenarios=3)
    project.backend(UNEVEN)

    written = project.run(*way, "scenarios/shop").stdout.str()

    assert "/3 ·" not in written
    assert "\x1b" not in written
