"""Sessions with fewer xdist workers than -n: it says how many rollouts are in flight, and one worker is enough for tests that read them.

tests/session/test_worker_count.py has the ways to ask for workers, and what tests keep all of them.
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


def ran(project: Project, *arguments: str, **outcomes: int) -> pytest.RunResult:
    result = project.run("-p", "no:cov", *arguments)
    result.assert_outcomes(**outcomes)
    return result


def test_one_worker_reads(project: Project) -> None:
    """-n 6 is six rollouts in flight and one worker, as one line of the header says, with the option that changes it."""
    project.suite(scenarios=8)

    result = ran(project, "-n", "6", "scenarios/shop", passed=8)

    assert 1 == started(result)
    assert 6 == in_flight(result)
    line = "agentbench: 1 of 6 workers starts, the tests only read rollouts (--agentbench-workers=6 starts all)"
    assert [line] == [each for each in result.outlines if "workers" in each and each.startswith("agentbench:")]


@pytest.mark.slow
def test_the_literal_number(project: Project) -> None:
    """--agentbench-workers is how many start, more than -n or fewer; what is in flight stays what -n said."""
    project.suite(scenarios=4)

    literal = ran(project, "-n", "2", "--agentbench-workers=3", "scenarios/shop", passed=4)
    assert (3, 2) == (started(literal), in_flight(literal))
    assert "--agentbench-workers=" not in literal.stdout.str()


@pytest.mark.slow
def test_the_literal_number_wants_n(project: Project) -> None:
    """Without -n the option is a usage error."""
    project.suite(scenarios=1)

    refused = project.run("--agentbench-workers=2", "scenarios/shop")
    assert pytest.ExitCode.USAGE_ERROR == refused.ret
    refused.stderr.fnmatch_lines(["*--agentbench-workers says how many xdist workers start with -n; add -n N, or leave it out"])


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
