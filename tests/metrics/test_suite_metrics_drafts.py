"""Results of agents that judge their own work, computed from literal records."""

from __future__ import annotations

from pytest_agentbench.backends.telemetry.crosscheck import Client
from pytest_agentbench.metrics.suite_metrics import DraftMeans, DraftsSummary
from pytest_agentbench.records import Draft, Json, LLMCall, Rollout, Score
from pytest_agentbench.reports.failure_section import rollout_section
from pytest_agentbench.runs.results import SuiteResult
from tests.made_runs import run_of

VERDICT: Json = {"is_sufficient": False, "confidence": 0.8, "reasoning": "No card\nwas blocked."}


def draft(number: int, tsq: float | None = None, *, status: str = "ok", accepted: bool = False, chosen: bool = False) -> Draft:
    scores = {} if tsq is None else {"tsq": Score(tsq)}
    return Draft(number, status, "lost" * (status != "ok"), accepted=accepted, chosen=chosen, scores=scores)


def rollout(*drafts: Draft, other_calls: tuple[LLMCall, ...] = ()) -> Rollout:
    return Rollout("shop", "b-0", "default", 1, "ok", drafts=drafts, other_calls=other_calls, settings={"model": "m"})


def suite(*rollouts: Rollout) -> SuiteResult:
    """Returns the result of a suite with these rollouts."""
    return run_of(*rollouts).suites["shop"]


def test_drafts_are_counted() -> None:
    """First and chosen drafts are compared over the rollouts in which both have the score."""
    found = suite(
        rollout(draft(1, 0.5), draft(2, 1.0, accepted=True, chosen=True)),
        rollout(draft(1, 0.25, chosen=True), draft(2, 0.0)),
        rollout(draft(1, status="agent_error"), draft(2, 0.75, accepted=True, chosen=True)),
    )

    assert (
        DraftsSummary(rollouts=3, drafts=6, accepted=2, scores={"tsq": DraftMeans(rollouts=2, first=0.375, chosen=0.625)}) == found.drafts
    )


def test_an_agent_without_drafts() -> None:
    """If no agent judges itself, nothing is counted."""
    assert suite(rollout()).drafts is None


def test_a_judge_on_the_same_server_counts() -> None:
    """Calls of a judge count for the comparison with the server's counters only if the judge uses that server."""
    client = Client()
    client.add(
        rollout(
            other_calls=(
                LLMCall(0, 0, 1, prompt_tokens=7, role="judge"),
                LLMCall(0, 0, 1, prompt_tokens=9, role="judge", endpoint="http://other/v1"),
            )
        )
    )

    assert (1, 7) == (client.calls, client.prompt_tokens)


def test_a_failure_shows_the_drafts() -> None:
    """The report of a failed test has the drafts with verdicts and scores, and names the chosen one."""
    judged = Draft(2, "limit", "turns", verdict=VERDICT, chosen=True, scores={"tsq": Score(0.5)})
    lines = rollout_section(rollout(draft(1, status="agent_error"), judged)).splitlines()

    assert "draft 1   agent_error, not judged: lost" in lines
    assert "draft 2   limit, insufficient (0.8), chosen, tsq 0.500: No card was blocked." in lines
