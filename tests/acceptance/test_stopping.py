"""Sessions that end early: -x, --maxfail, a time limit, a killed worker."""

from __future__ import annotations

from collections import Counter

import pytest

from pytest_agentbench.gate.exit_status import CANNOT_MEASURE
from pytest_agentbench.reports import phrases
from pytest_agentbench.reports.document import Level
from tests.findings import report_of, said
from tests.project import BOTH_WAYS, FIND_THEN_ANSWER, TEST_FILE, WAYS, Project

#: This is longer than any test of this file may take, so a rollout with such an answer has to be cancelled.
NEVER = 600_000  # milliseconds


def slow_from(number: int, count: int) -> list[dict[str, object]]:
    """Returns answers that never come, for the scenarios from `number` on."""
    slow: list[dict[str, object]] = [{"match": {"contains": f"shop-{each}"}, "ttft_ms": NEVER} for each in range(number, count)]
    return slow


@pytest.mark.slow
@BOTH_WAYS
def test_the_first_failure_ends_the_session(project: Project, way: tuple[str, ...]) -> None:
    """Under -x the session does not wait for rollouts of tests that will not run. The status is 1, or 2 under xdist (Interrupted)."""
    project.suite(scenarios=12)
    project.backend([{"match": {"contains": "shop-0"}, "text": "No."}, *slow_from(1, 12), *FIND_THEN_ANSWER])

    result = project.run(*way, "-x", "scenarios/shop")

    assert (2 if way else 1) == result.ret
    assert 1 == result.parseoutcomes()["failed"]
    assert "passed" not in result.parseoutcomes()
    assert ["shop[shop-0]"] == [str(rollout.key) for rollout in project.rollouts]
    assert 1 == project.run_json["plan"]["finished"]
    assert 11 == project.run_json["plan"]["not_run"]
    result.stdout.fnmatch_lines(["*FAILED scenarios/shop/test_shop.py::test_tools[[]shop-0[]]*"])


@WAYS
def test_maxfail(project: Project, way: tuple[str, ...]) -> None:
    """--maxfail=2 continues after one failure and ends with the second. Rollouts run in the order of the tests."""
    project.suite(scenarios=8)
    project.backend([*({"match": {"contains": f"shop-{each}"}, "text": "No."} for each in (0, 2)), *slow_from(3, 8), *FIND_THEN_ANSWER])

    result = project.run(*way, "--maxfail=2", "scenarios/shop")

    assert pytest.ExitCode.OK != result.ret
    assert (2, 1) == (result.parseoutcomes()["failed"], result.parseoutcomes()["passed"])
    assert {"shop[shop-0]", "shop[shop-1]", "shop[shop-2]"} == {str(rollout.key) for rollout in project.rollouts}


@pytest.mark.slow
@BOTH_WAYS
def test_a_time_limit(project: Project, way: tuple[str, ...]) -> None:
    """After the time limit, running rollouts may end and are judged. The rest is not started, which is one ERROR."""
    project.suite(scenarios=6, thresholds={"tsq": 0.5, "tsq.mean": 0.5})
    project.backend([{"ttft_ms": 1500, **rule} for rule in FIND_THEN_ANSWER])

    result = project.run(*way, "--agentbench-time-limit=2s", "--agentbench-concurrency=2", "scenarios/shop")

    passed = result.parseoutcomes().get("passed", 0)
    # Workers may need longer than the limit to send their plan.
    assert passed in ((0, 2) if way else (2,))
    errors = result.parseoutcomes().get("errors", 1)
    # Workers may run tests that they already have before they learn of the first ERROR.
    assert errors >= 1 if way else errors == 1
    assert CANNOT_MEASURE == result.ret
    assert passed == len(project.rollouts)
    assert {"rollouts": 6, "finished": passed, "not_run": 6 - passed} == project.run_json["plan"]
    result.stdout.fnmatch_lines(["*shop[[]shop-?[]]: cancelled: the session's time limit of 2 s is over"])
    report = report_of(project.directory, Level.SUMMARY)
    assert ([] if passed else [("shop",)]) == [run.unknown_suites for (run,) in said(report, phrases.unknown_suites)]
    assert [(6, 6 - passed)] == [(run.plan.rollouts, run.plan.not_run) for (run,) in said(report, phrases.not_run)]


#: The engine's counters are read as soon as it answers, which is when the limit begins.
AFTER_THE_BOOT = """
import time
from pathlib import Path

for _ in range(600):
    if [*Path("reports").glob("*/samples.jsonl")]:
        break
    time.sleep(0.1)
time.sleep(1)
"""


@pytest.mark.slow
@WAYS
def test_a_time_limit_before_the_first_rollout(project: Project, way: tuple[str, ...]) -> None:
    """If the limit is over before the tests are collected, no rollout starts, and the session does not hang."""
    project.suite(scenarios=3, test=f"{AFTER_THE_BOOT}\n{TEST_FILE}")

    result = project.run(*way, "--agentbench-time-limit=0.001s", "scenarios/shop")

    assert 1 <= result.parseoutcomes().get("errors", 1) <= (3 if way else 1)
    assert [] == project.rollouts
    assert "NOT MEASURED" == project.run_json["verdict"]


KILLED = """
import os
import signal
from pathlib import Path

ONCE = Path(__file__).with_name("killed")

def test_tools(rollout, thresholds):
    if rollout.scenario == "shop-1" and not ONCE.exists():
        ONCE.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    assert rollout.score("tsq") >= thresholds["tsq"]
"""


@pytest.mark.slow
def test_a_killed_worker_loses_no_rollout(project: Project) -> None:
    """If a worker is killed, its test is an ERROR. Xdist starts another worker, and every rollout runs and counts once."""
    project.suite(scenarios=6, test=KILLED, thresholds={"tsq": 0.5, "tsq.mean": 0.9})

    result = project.run("-n", "2", "scenarios/shop")

    result.assert_outcomes(passed=5, errors=1)
    crash = "worker 'gw?' crashed while running 'scenarios/shop/test_shop.py::test_tools[[]shop-1[]]'"
    result.stdout.fnmatch_lines([f"*{crash}: nothing was judged; no rollout is lost*"])
    assert {f"shop[shop-{number}]": 1 for number in range(6)} == Counter(str(rollout.key) for rollout in project.rollouts)
    assert ["PASS"] == [rule["verdict"] for rule in project.run_json["gate"]["rules"]]
    assert (CANNOT_MEASURE, "NOT MEASURED") == (result.ret, project.run_json["verdict"])

    assert 0 == project.run("--agentbench-resume", "scenarios/shop").ret


@pytest.mark.slow
def test_a_killed_worker_outside_of_suites(project: Project) -> None:
    """If the killed worker ran a test outside of suites, that test fails, as in other projects."""
    project.suite(scenarios=2)
    project.write("tests/test_own.py", "import os, signal\ndef test_own(): os.kill(os.getpid(), signal.SIGKILL)\n")

    result = project.run("-n", "2", "scenarios/shop", "tests")

    result.assert_outcomes(passed=2, failed=1)
    assert pytest.ExitCode.TESTS_FAILED == result.ret


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["ssh=nowhere.invalid", "2*ssh=nowhere.invalid", "popen//via=nowhere"])
def test_workers_elsewhere_are_refused(project: Project, spec: str) -> None:
    """Workers on another machine could not reach the pool, so they are a usage error before anything starts."""
    project.suite()

    result = project.run("--dist=load", "--tx", spec, "scenarios/shop")

    assert pytest.ExitCode.USAGE_ERROR == result.ret
    result.stderr.fnmatch_lines([f"ERROR: agentbench needs workers on this machine, not {spec.removeprefix('2*')}; use -n or --tx popen"])
    assert not (project.root / "reports").exists()


@pytest.mark.slow
def test_workers_given_with_tx(project: Project) -> None:
    """`--tx 2*popen` is two workers, so two rollouts in flight. --dist worksteal and loadscope distribute tests as usual."""
    project.suite(scenarios=3)

    for dist in ("worksteal", "loadscope"):
        result = project.run(f"--dist={dist}", "--tx", "2*popen", "scenarios/shop")

        result.assert_outcomes(passed=3)
        assert 2 == project.run_json["settings"]["concurrency"]
        assert 3 == len(project.rollouts)
