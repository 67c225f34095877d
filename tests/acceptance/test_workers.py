"""Sessions with fewer xdist workers than -n, which is how many rollouts are in flight: one worker is enough for the tests of a suite.

tests/session/test_setup_worker_count.py has the ways to ask for workers, and the paths with which as many start as -n says.
"""

from __future__ import annotations

import pytest

from tests.project import FIND_THEN_ANSWER, TEST_FILE, Project


def started(result: pytest.RunResult) -> int:
    """Workers that xdist made, as its own line has it."""
    return next(int(line.split("/")[0].rpartition(" ")[2]) for line in result.outlines if "created: " in line)


def in_flight(result: pytest.RunResult) -> int:
    """Rollouts at once, as our header has it."""
    return next(int(line.split()[1]) for line in result.outlines if " rollouts in flight" in line)


def reasons(result: pytest.RunResult) -> list[str]:
    """What our header says of xdist workers."""
    return [line.removeprefix("agentbench: ") for line in result.outlines if line.startswith("agentbench: ") and " xdist worker" in line]


def ran(project: Project, *arguments: str, **outcomes: int) -> pytest.RunResult:
    result = project.run("-p", "no:cov", *arguments)
    result.assert_outcomes(**outcomes)
    return result


def test_one_worker_reads(project: Project) -> None:
    """-n 6 is six rollouts in flight and one worker, whatever the tests do. The header says so, with the option that changes it."""
    project.suite(scenarios=8, test=f"import time\n{TEST_FILE}")

    result = ran(project, "-n", "6", "scenarios/shop", passed=8)

    assert 1 == started(result)
    assert 6 == in_flight(result)
    assert ["1 xdist worker starts: every path is in the folder of a suite (--agentbench-workers=N starts N)"] == reasons(result)


@pytest.mark.slow
def test_the_literal_number(project: Project) -> None:
    """--agentbench-workers is how many start, more than -n or fewer; what is in flight stays what -n said."""
    project.suite(scenarios=4)

    literal = ran(project, "-n", "2", "--agentbench-workers=3", "scenarios/shop", passed=4)
    assert (3, 2) == (started(literal), in_flight(literal))
    assert ["3 xdist workers start: set by --agentbench-workers"] == reasons(literal)


@pytest.mark.slow
def test_the_number_of_a_suite(project: Project) -> None:
    """A suite says in suite.yaml how many start with -n; of two suites that say it the larger number counts."""
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
    """Where a path is in no suite's folder, as many start as -n says."""
    project.suite(scenarios=2)
    project.write("tests/test_own.py", "def test_own(): pass\n")

    result = ran(project, "-n", "2", "scenarios/shop/test_shop.py::test_tools", ".", passed=3)

    assert (2, 2) == (started(result), in_flight(result))
    assert ["2 xdist workers start: set by -n, because . is not in the folder of a suite (--agentbench-workers=N starts N)"] == reasons(
        result
    )


@pytest.mark.slow
def test_the_literal_number_wants_n(project: Project) -> None:
    """Without -n the option is a usage error."""
    project.suite(scenarios=1)

    refused = project.run("--agentbench-workers=2", "scenarios/shop")
    assert pytest.ExitCode.USAGE_ERROR == refused.ret
    refused.stderr.fnmatch_lines(["*--agentbench-workers sets how many xdist workers start with -n; add -n N, or leave it out"])


@pytest.mark.slow
def test_the_first_failure(project: Project) -> None:
    """-x ends with the failure, and no test beside it is an ERROR; --lf then runs that one."""
    project.suite(scenarios=6)
    failing = [{"match": {"contains": "shop-2"}, "text": "No."}, *FIND_THEN_ANSWER]
    project.backend(failing)

    ended = project.run("-n", "6", "-x", "scenarios/shop")

    assert (1, pytest.ExitCode.INTERRUPTED) == (started(ended), ended.ret)  # xdist's word for it
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
    """One worker is no single point of failure: the test that killed it is an ERROR, all others are judged."""
    project.suite(scenarios=4, test=TEST_FILE + DEADLY)

    result = project.run("-n", "4", "scenarios/shop")

    assert 1 == started(result)
    result.assert_outcomes(passed=7, errors=1)
