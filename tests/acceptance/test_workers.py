"""Sessions that start fewer xdist workers than -n says. -n sets the rollouts in flight, and one worker is enough for the tests of a suite.

tests/session/test_setup_worker_count.py has the ways to set the number of workers, and the paths for which -n workers start.
"""

from __future__ import annotations

import pytest

from tests.project import FIND_THEN_ANSWER, TEST_FILE, Project


def started(result: pytest.RunResult) -> int:
    """Returns the number of workers from xdist's own line."""
    return next(int(line.split("/")[0].rpartition(" ")[2]) for line in result.outlines if "created: " in line)


def in_flight(result: pytest.RunResult) -> int:
    """Returns the number of rollouts in flight from our header."""
    return next(int(line.split()[1]) for line in result.outlines if " rollouts in flight" in line)


def reasons(result: pytest.RunResult) -> list[str]:
    """Returns the lines of our header about xdist workers."""
    return [line.removeprefix("agentbench: ") for line in result.outlines if line.startswith("agentbench: ") and " xdist worker" in line]


def ran(project: Project, *arguments: str, **outcomes: int) -> pytest.RunResult:
    result = project.run("-p", "no:cov", *arguments)
    result.assert_outcomes(**outcomes)
    return result


def test_one_worker_reads(project: Project) -> None:
    """-n 6 means six rollouts in flight and one worker, whatever the tests do. The header says so and names the option that changes it."""
    project.suite(scenarios=8, test=f"import time\n{TEST_FILE}")

    result = ran(project, "-n", "6", "scenarios/shop", passed=8)

    assert 1 == started(result)
    assert 6 == in_flight(result)
    assert ["1 xdist worker starts: every path is in the folder of a suite (--agentbench-workers=N starts N)"] == reasons(result)


@pytest.mark.slow
def test_the_workers_option(project: Project) -> None:
    """--agentbench-workers sets how many workers start, whether more or fewer than -n. The rollouts in flight are still set by -n."""
    project.suite(scenarios=4)

    literal = ran(project, "-n", "2", "--agentbench-workers=3", "scenarios/shop", passed=4)
    assert (3, 2) == (started(literal), in_flight(literal))
    assert ["3 xdist workers start: set by --agentbench-workers"] == reasons(literal)


@pytest.mark.slow
def test_the_number_of_a_suite(project: Project) -> None:
    """suite.yaml can set how many workers start with -n. If two suites set it, the larger number counts."""
    project.suite(scenarios=2, xdist_workers=2)
    project.suite("chat", scenarios=2, xdist_workers=3)

    one = ran(project, "-n", "4", "scenarios/shop", passed=2)
    assert (2, 4) == (started(one), in_flight(one))
    assert ["2 xdist workers start: set by xdist_workers in scenarios/shop/suite.yaml"] == reasons(one)

    both = ran(project, "-n", "4", "scenarios/shop", "scenarios/chat", passed=4)
    assert (3, 4) == (started(both), in_flight(both))
    assert ["3 xdist workers start: set by xdist_workers in scenarios/chat/suite.yaml"] == reasons(both)


@pytest.mark.slow
def test_tests_beside_the_suites(project: Project) -> None:
    """If a path is not in a suite's folder, as many workers start as -n says."""
    project.suite(scenarios=2)
    project.write("tests/test_own.py", "def test_own(): pass\n")

    result = ran(project, "-n", "2", "scenarios/shop/test_shop.py::test_tools", ".", passed=3)

    assert (2, 2) == (started(result), in_flight(result))
    assert ["2 xdist workers start: set by -n, because . is not in the folder of a suite (--agentbench-workers=N starts N)"] == reasons(
        result
    )


@pytest.mark.slow
def test_the_workers_option_needs_n(project: Project) -> None:
    """--agentbench-workers without -n is a usage error."""
    project.suite(scenarios=1)

    refused = project.run("--agentbench-workers=2", "scenarios/shop")
    assert pytest.ExitCode.USAGE_ERROR == refused.ret
    refused.stderr.fnmatch_lines(["*--agentbench-workers sets how many xdist workers start with -n; add -n N, or leave it out"])


@pytest.mark.slow
def test_the_first_failure(project: Project) -> None:
    """-x ends with the failure, and no other test is an ERROR. --lf then runs only the failed one."""
    project.suite(scenarios=6)
    failing = [{"match": {"contains": "shop-2"}, "text": "No."}, *FIND_THEN_ANSWER]
    project.backend(failing)

    ended = project.run("-n", "6", "-x", "scenarios/shop")

    # The status is xdist's own for a session that ends early.
    assert (1, pytest.ExitCode.INTERRUPTED) == (started(ended), ended.ret)
    ended.assert_outcomes(passed=2, failed=1)

    project.backend()
    assert 1 == started(ran(project, "-n", "6", "--lf", "scenarios/shop", passed=1))


DEADLY = """
def test_end(rollout):
    if rollout.scenario == "shop-1":
        __import__("os")._exit(1)
"""


@pytest.mark.slow
def test_a_worker_that_dies_is_replaced(project: Project) -> None:
    """If the only worker dies, another one starts. The test that killed it is an ERROR, and all others are judged."""
    project.suite(scenarios=4, test=TEST_FILE + DEADLY)

    result = project.run("-n", "4", "scenarios/shop")

    assert 1 == started(result)
    result.assert_outcomes(passed=7, errors=1)
