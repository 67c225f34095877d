"""Calls of earlier attempts are recorded, and count in every number about calls."""

from __future__ import annotations

import pytest

from pytest_agentbench.cli import main
from pytest_agentbench.gate.baselines import read_evidence
from pytest_agentbench.records import Json
from tests.project import FIND_THEN_ANSWER, Project

#: The first two requests fail, each with another status.
TWO_FAIL: list[Json] = [
    {"match": {"call": 1}, "status": 500},
    {"match": {"call": 2}, "status": 503},
    *FIND_THEN_ANSWER,
]
SLO = "--agentbench-slo=e2e=60s"


def failing_once(scenarios: int) -> list[Json]:
    """Returns a script in which the first request of each customer fails."""
    once = [{"match": {"contains": f"Customer shop-{number}:", "call": 1}, "status": 500} for number in range(scenarios)]
    return [*once, *FIND_THEN_ANSWER]


def test_failed_calls_stay(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    """After 500, 503 and success the run has four calls, two of them failed, and its goodput is one half, in all reports."""
    project.suite(scenarios=1)
    project.backend(TWO_FAIL)

    project.run("scenarios/shop", SLO).assert_outcomes(passed=1)

    (rollout,) = project.rollouts
    assert [("infra_error", "server_error"), ("infra_error", "overloaded")] == [
        (attempt.status, call.error_kind) for attempt in rollout.earlier_attempts for call in attempt.calls
    ]
    assert (2, 2) == (rollout.turns, len(rollout.calls))
    performance = project.run_json["performance"]
    assert (4, {"server_error": 1, "overloaded": 1}) == (performance["calls"], performance["failed_calls"])
    assert (2, 2, 0.5) == tuple(performance["goodput"][name] for name in ("good_calls", "bad_calls", "attainment"))
    assert (4, 2) == (performance["ttft_adjusted_ms"]["n"], performance["ttft_adjusted_ms"]["failed"])
    assert rollout.ended_ns - rollout.earlier_attempts[0].started_ns == pytest.approx(performance["span_s"] * 1e9)
    assert 4 == sum(len(trial.calls) for trial in read_evidence(project.directory).groups["shop"])
    capsys.readouterr()
    assert 0 == main(["show", str(project.directory), "--as", "aiperf"])
    shown = capsys.readouterr().out
    assert ["2", "2"] == [line.split()[-1] for line in shown.splitlines() if "Request Count" in line]


@pytest.mark.slow
def test_a_gate_sees_failed_calls(project: Project) -> None:
    """If every rollout needs a second attempt, a goodput rule fails, and latency rules are inconclusive because too many calls failed."""
    # Without events there is no doubt about timestamps.
    project.suite(scenarios=20, agent={"kind": "tool_calling", "stream_upgrade": False})
    project.good_run("before")
    project.backend(failing_once(20))
    rules = ("--agentbench-gate=goodput >= 95%", "--agentbench-gate=e2e.p50 <= 60s", "--agentbench-gate=e2e.p50 <= +900% vs baseline")

    result = project.run("scenarios/shop", SLO, "--agentbench-baseline=before", *rules)

    assert 1 == result.ret
    found = {rule["rule"]: (rule["verdict"], rule["reason"]) for rule in project.run_json["gate"]["rules"]}
    failed = ("INCONCLUSIVE", "20 of 60 LLM calls failed, more than 2 %, and failed calls have no latency")
    assert ("FAIL", "") == found["goodput >= 95%"]
    assert failed == found["e2e.p50 <= 60s"] == found["e2e.p50 <= +900% vs baseline"]
    assert 0 == project.run_json["suites"]["shop"]["rollouts"]["infra_error"]


@pytest.mark.slow
def test_attempts_of_an_earlier_session_count(project: Project) -> None:
    """A resumed run contains the calls of the failed session once, in a record that names the session."""
    project.suite(scenarios=1)
    project.backend(failing_once(1))
    project.run("--agentbench-retries=0", "scenarios/shop").assert_outcomes(errors=1)

    project.run("--agentbench-resume", "scenarios/shop").assert_outcomes(passed=1)
    project.run("--agentbench-resume", "scenarios/shop").assert_outcomes(passed=1)

    (rollout,) = project.rollouts
    assert (3, [(1, 1, 1), (2, 2, 1)]) == (
        rollout.attempt,
        [(each.attempt, each.session, len(each.calls)) for each in rollout.earlier_attempts],
    )
    performance = project.run_json["performance"]
    assert (4, {"server_error": 2}) == (performance["calls"], performance["failed_calls"])
