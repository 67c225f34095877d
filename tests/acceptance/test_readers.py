"""How many xdist workers start: -n says how many rollouts are in flight, and one worker is enough for tests that only read them."""

from __future__ import annotations

import pytest

from tests.project import FIND_THEN_ANSWER, TEST_FILE, Project

CALLS = "def test_chat(llm): pass\n"  # a test of a suite that calls models itself


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


def test_the_literal_number(project: Project) -> None:
    """--agentbench-workers is how many start, more than -n or fewer; what is in flight stays what -n said, or the option of its own."""
    project.suite(scenarios=4)

    literal = ran(project, "-n", "2", "--agentbench-workers=3", "scenarios/shop", passed=4)
    assert (3, 2) == (started(literal), in_flight(literal))
    assert "--agentbench-workers=" not in literal.stdout.str()

    assert 5 == in_flight(ran(project, "-n", "2", "--agentbench-concurrency=5", "scenarios/shop", passed=4))


def test_the_literal_number_wants_n(project: Project) -> None:
    """Without -n the option is a usage error; in the ini file it waits for sessions with -n, and -n 0 is one process."""
    project.suite(scenarios=1)

    refused = project.run("--agentbench-workers=2", "scenarios/shop")
    assert pytest.ExitCode.USAGE_ERROR == refused.ret
    refused.stderr.fnmatch_lines(["*--agentbench-workers says how many xdist workers start with -n; add -n N, or leave it out"])

    project.pytester.makeini("[pytest]\naddopts = --import-mode=importlib\nagentbench_workers = 2\n")
    ran(project, "scenarios/shop", passed=1)
    ran(project, "-n0", "--agentbench-workers=3", "scenarios/shop", passed=1)
    assert 2 == started(ran(project, "-n3", "scenarios/shop", passed=1))


#: What other tests there are -> the arguments that lead to them.
OTHERS = {
    "tests beside the suites": ("scenarios/shop", "tests"),
    "above the suites": (".",),
    "of a suite that calls models": ("scenarios",),
    "each": ("--dist=each", "scenarios/shop"),
    "doctests": ("--doctest-modules", "scenarios/shop"),
}


@pytest.mark.parametrize("arguments", OTHERS.values(), ids=OTHERS)
def test_other_tests_keep_what_was_typed(project: Project, arguments: tuple[str, ...]) -> None:
    """Where a path leads to a test that is not known to only read rollouts, as many workers start as -n says."""
    project.suite(scenarios=1)
    project.suite("chat", scenarios=1, test=CALLS)
    project.write("tests/test_own.py", "def test_own(): pass\n")

    result = project.run("-n", "2", *arguments)

    assert 2 == started(result)
    assert "--agentbench-workers" not in result.stdout.str()


def test_suites_that_are_not_selected(project: Project) -> None:
    """A suite that -m leaves out does not count; tests that call models count also where rollouts run only when they are named."""
    project.suite(scenarios=1)
    project.suite("chat", scenarios=1, test=CALLS)

    assert 1 == started(ran(project, "-n", "2", "-m", "shop", "scenarios", passed=1))

    project.suite("chat", scenarios=1, test=CALLS, only_when_named=True)
    assert 2 == started(ran(project, "-n", "2", "-m", "not nothing", "scenarios", passed=2))


def test_without_a_path(project: Project) -> None:
    """Without a path `testpaths` decides, and where there is none, the folder that pytest was started in."""
    project.suite(scenarios=1)
    project.write("tests/test_own.py", "def test_own(): pass\n")
    assert 2 == started(ran(project, "-n", "2", passed=2))

    project.pytester.makeini("[pytest]\naddopts = --import-mode=importlib -n 2\ntestpaths = scenarios\n")
    assert 1 == started(ran(project, passed=1))


#: Environment, arguments -> workers, rollouts in flight.
ASKED = {
    "PYTEST_ADDOPTS": ({"PYTEST_ADDOPTS": "-n 4"}, (), (1, 4)),
    "auto": ({"PYTEST_XDIST_AUTO_NUM_WORKERS": "4"}, ("-n", "auto"), (1, 4)),
    "logical and maxprocesses": ({"PYTEST_XDIST_AUTO_NUM_WORKERS": "4"}, ("-n", "auto", "--maxprocesses=3"), (1, 3)),
    "literal and maxprocesses": ({}, ("-n4", "--maxprocesses=3", "--agentbench-workers=2"), (2, 3)),
    "tx": ({}, ("--tx", "2*popen", "--dist=load"), (2, 2)),
    "n over tx": ({}, ("--tx", "2*popen", "-n4"), (1, 4)),
    "loadscope": ({}, ("-n4", "--dist=loadscope"), (1, 4)),
    "loadfile": ({}, ("-n4", "--dist=loadfile"), (1, 4)),
    "loadgroup": ({}, ("-n4", "--dist=loadgroup"), (1, 4)),
    "worksteal": ({}, ("-n4", "--dist=worksteal"), (1, 4)),
}


#: The ways that xdist itself makes one of.
SLOW = ("n over tx", "loadfile", "loadgroup", "worksteal")


@pytest.mark.parametrize(
    ("environment", "arguments", "numbers"),
    [pytest.param(*asked, id=name, marks=pytest.mark.slow if name in SLOW else ()) for name, asked in ASKED.items()],
)
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

    result = ran(project, *arguments, "scenarios/shop", passed=2)

    assert numbers == (started(result), in_flight(result))


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


def test_a_worker_that_dies_is_replaced(project: Project) -> None:
    """One worker is no single point of failure: the test that killed it is an ERROR, all others are judged."""
    project.suite(scenarios=4, test=TEST_FILE + DEADLY)

    result = project.run("-n", "4", "scenarios/shop")

    assert 1 == started(result)
    result.assert_outcomes(passed=7, errors=1)
