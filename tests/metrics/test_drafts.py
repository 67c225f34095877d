"""What judging came to: counted from literal records, and said in words."""

from __future__ import annotations

from dataclasses import replace

from pytest_agentbench.backends.telemetry.crosscheck import Client
from pytest_agentbench.metrics.drafts import DraftMeans, DraftsSummary, JudgeCost
from pytest_agentbench.records import Attempt, Draft, Json, LLMCall, Rollout, Score
from pytest_agentbench.reports.failure_section import rollout_section
from pytest_agentbench.reports.wording import judging_lines
from pytest_agentbench.runs.results import SuiteResult
from tests.made_runs import run_of

NS = 1_000_000_000
VERDICT: Json = {"is_sufficient": False, "confidence": 0.8, "reasoning": "No card\nwas blocked."}


def draft(number: int, tsq: float | None = None, *, status: str = "ok", accepted: bool = False, chosen: bool = False) -> Draft:
    scores = {} if tsq is None else {"tsq": Score(tsq)}
    return Draft(number, status, "lost" * (status != "ok"), accepted=accepted, chosen=chosen, scores=scores)


def rollout(*drafts: Draft, judge_calls: tuple[LLMCall, ...] = ()) -> Rollout:
    return Rollout("shop", "b-0", "default", 1, "ok", drafts=drafts, judge_calls=judge_calls, settings={"model": "m"})


def suite(*rollouts: Rollout) -> SuiteResult:
    """What was found of a suite with these rollouts."""
    return run_of(*rollouts).suites["shop"]


def test_judges_of_earlier_attempts_are_counted() -> None:
    """What judging cost is what it cost in all attempts, those that failed for another reason included."""
    judged = LLMCall(received_ns=0, sent_ns=0, ended_ns=NS, prompt_tokens=10, completion_tokens=1)
    failed = Attempt(1, "infra_error", judge_calls=(judged,))

    cost = suite(replace(rollout(draft(1, chosen=True), judge_calls=(judged,)), earlier_attempts=(failed,))).judge

    assert cost is not None
    assert (2, 20, 2.0) == (cost.calls, cost.prompt_tokens, cost.seconds)


def test_drafts_are_counted() -> None:
    """First and chosen drafts are compared over the same rollouts: those where both have the score."""
    found = suite(
        rollout(draft(1, 0.5), draft(2, 1.0, accepted=True, chosen=True)),
        rollout(draft(1, 0.25, chosen=True), draft(2, 0.0)),
        rollout(draft(1, status="agent_error"), draft(2, 0.75, accepted=True, chosen=True)),
    )

    assert (
        DraftsSummary(rollouts=3, drafts=6, accepted=2, scores={"tsq": DraftMeans(rollouts=2, first=0.375, chosen=0.625)}) == found.drafts
    )
    assert [
        ("drafts", "6 of 3 rollouts (2.00 each), 2 (66.7 %) with an accepted one"),
        ("drafts", "tsq 0.375 of the first drafts, 0.625 of the chosen ones"),
    ] == [*judging_lines(found)]


def test_judges_are_counted() -> None:
    """Calls, tokens and seconds of judges, those that failed among them; where nobody judged there is nothing to say."""
    good = LLMCall(0, 0, 2 * NS, prompt_tokens=1000, completion_tokens=50, model="m")
    cut = LLMCall(0, 0, NS // 2, error_kind="cut", model="m")
    found = suite(rollout(judge_calls=(good, cut)))

    assert JudgeCost(calls=2, failed_calls=1, prompt_tokens=1000, output_tokens=50, seconds=2.5) == found.judge
    assert [("judge", "2 calls (1 failed), 1,000 + 50 tokens, 2.5 s, none of it in the timings of calls")] == [*judging_lines(found)]
    quiet = suite(rollout())
    assert (None, None, []) == (quiet.drafts, quiet.judge, [*judging_lines(quiet)])


def test_a_server_counts_the_judge_that_it_is() -> None:
    """What is compared with the server's own counts has the calls of a judge on that server, and not those of one elsewhere."""
    client = Client()
    client.add(rollout(judge_calls=(LLMCall(0, 0, 1, prompt_tokens=7, model="m"), LLMCall(0, 0, 1, prompt_tokens=9, model="other"))))

    assert (1, 7) == (client.calls, client.prompt_tokens)


def test_a_failure_shows_the_drafts() -> None:
    """Beside a failed test stand the drafts: what was said of each, its scores, and which one counts."""
    judged = Draft(2, "limit", "turns", verdict=VERDICT, chosen=True, scores={"tsq": Score(0.5)})
    lines = rollout_section(rollout(draft(1, status="agent_error"), judged)).splitlines()

    assert "draft 1   agent_error, not judged: lost" in lines
    assert "draft 2   limit, insufficient (0.8), chosen, tsq 0.500: No card was blocked." in lines
