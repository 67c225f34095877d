"""Judges, from suite.yaml to the report: judges of agents, judges of scorers, and judges that fail."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_agentbench.records import Json
from pytest_agentbench.reports import suite_phrases
from pytest_agentbench.reports.document import Level
from tests.engines import engine
from tests.findings import facts, report_of, said
from tests.labelled_router import Router, routing
from tests.project import FIND_THEN_ANSWER, Project

JUDGE = "Then give your verdict"
VERDICT: Json = {"reasoning": "Because.", "missing_steps": [], "suggestions": "", "is_sufficient": True, "confidence": 0.9}
DONE: Json = {"goal_1": {"reasoning": "It was found.", "completed": True}}


def test_banking(project: Project) -> None:
    """The suite banking runs with the self-evaluating agent on the embedded engine. Drafts and the judge's calls are counted separately."""
    project.shipped("banking")

    result = project.run("scenarios/banking", "--agentbench-agent=self_evaluating", "--agentbench-limit=10")
    suite, rollouts = project.run_json["suites"]["banking"], project.rollouts

    result.assert_outcomes(passed=10)
    assert ({"ok"}, 10) == ({rollout.status for rollout in rollouts}, suite["drafts"]["rollouts"])
    for rollout in rollouts:
        chosen = next(draft for draft in rollout.drafts if draft.chosen)
        assert (rollout.tool_calls, rollout.answer, rollout.scores) == (chosen.tool_calls, chosen.answer, chosen.scores)
        assert len(rollout.drafts) == len(rollout.other_calls) == sum(draft.verdict is not None for draft in rollout.drafts)
        assert "judge" not in str(rollout.messages[0])
    assert sum(len(rollout.drafts) for rollout in rollouts) == suite["roles"]["judge"]["calls"] == suite["drafts"]["drafts"] > 10
    assert sum(len(rollout.calls) for rollout in rollouts) == project.run_json["performance"]["calls"]
    assert project.run_json["performance"]["split"]["judge"]["share"] > 0
    assert [] == [each for each in project.run_json["serving"]["disagreements"] if "counts" in each]
    report = report_of(project.directory, Level.FULL)
    assert [(10, suite["drafts"]["drafts"])] == [(each.rollouts, each.drafts) for (each,) in said(report, suite_phrases.drafts)]
    assert [*suite["drafts"]["scores"]] == [name for _, name in said(report, suite_phrases.draft_score)]
    assert "tsq" in suite["drafts"]["scores"]
    assert [suite["roles"]["judge"]["calls"]] == [use.calls for (use,) in said(report, suite_phrases.role)]
    assert 1 == len(facts(report, "judge"))


@pytest.mark.slow
def test_action_completion(project: Project) -> None:
    """A scorer may call the backend under test. Its calls are not counted as the agent's."""
    project.backend([{"match": {"contains": "<goals>"}, "text": json.dumps(DONE)}, *FIND_THEN_ANSWER])
    project.suite(scorers=["tsq", {"action_completion": {"judgements": 2}}])

    project.run("scenarios/shop").assert_outcomes(passed=3)

    for rollout in project.rollouts:
        assert (1.0, 2, 2, {}) == (rollout.score("action_completion"), len(rollout.calls), len(rollout.other_calls), rollout.score_errors)
        assert all(call.received_ns >= rollout.calls[-1].ended_ns for call in rollout.other_calls)
    assert (6, 6) == (project.run_json["suites"]["shop"]["roles"]["judge"]["calls"], project.run_json["performance"]["calls"])
    assert "judge" not in project.run_json["performance"]["split"]


@pytest.mark.slow
def test_a_judge_that_fails_is_an_error(project: Project) -> None:
    """If a judge's answer cannot be parsed, there is no score: the test is an ERROR that says so, other scores remain, and no mean counts
    it.
    """
    project.backend(
        [
            {"match": {"contains": "lamp?", "turn": 0, "call": 2}, "text": "YES"},
            {"match": {"contains": "cannot be used"}, "text": "YES"},
            *FIND_THEN_ANSWER,
        ]
    )
    asks = "def test_goals(rollout):\n    assert rollout.score('action_completion') == 1.0\n"
    project.suite(scenarios=2, scorers=["tsq", "action_completion"], test=asks)

    result = project.run("scenarios/shop", "--agentbench-concurrency=1")
    means = project.run_json["suites"]["shop"]

    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(["*action_completion*: judge_error: there is no JSON object in it; the judge said 'YES'*"])
    assert ({"action_completion": 2}, None) == (means["score_errors"], means["scores"]["action_completion"]["mean"])
    assert 1.0 == means["scores"]["tsq"]["mean"]["value"]


@pytest.mark.slow
def test_an_agents_judge_that_fails(project: Project) -> None:
    """If the judge of an agent gives no valid verdict, the rollout is an infra_error and is attempted again, up to the retries."""
    project.backend(
        [{"match": {"contains": JUDGE}, "text": "YES"}, {"match": {"contains": "cannot be used"}, "text": "NO"}, *FIND_THEN_ANSWER]
    )
    project.suite(scenarios=1, agent={"kind": "self_evaluating"})

    result = project.run("scenarios/shop", "--agentbench-retries=1")

    result.assert_outcomes(errors=1)
    rollout = project.rollouts[0]
    assert ("infra_error", 1, {}) == (rollout.status, len(rollout.earlier_attempts), rollout.scores)
    assert "there is no JSON object in it; the judge said 'NO'" == rollout.reason


@pytest.fixture
def other_engine(tmp_path: Path) -> Iterator[str]:
    """An endpoint for judges, whose engine accepts everything."""
    rules: list[Json] = [{"match": {"contains": "<goals>"}, "text": json.dumps(DONE)}, {"text": json.dumps(VERDICT)}]
    with engine(tmp_path, rules, model="a-judge", request_log=str(tmp_path / "judged.jsonl")) as url:
        yield f"{url}/v1"


@pytest.mark.slow
def test_judges_with_endpoints_of_their_own(project: Project, other_engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The judges of an agent and of scorers may use another model and endpoint. The key is read from the environment and is in no file."""
    monkeypatch.setenv("JUDGE_KEY", "very-secret-key")
    judge = {"url": other_engine, "model": "a-judge", "api_key": "JUDGE_KEY"}
    project.suite(agent={"kind": "self_evaluating", "evaluator_llm": judge}, scorers=["tsq", "action_completion"], judge=judge)

    project.run("scenarios/shop").assert_outcomes(passed=3)

    for rollout in project.rollouts:
        assert ({"a-judge"}, 4, 2) == ({call.model for call in rollout.other_calls}, len(rollout.other_calls), len(rollout.calls))
        assert (1.0, True) == (
            rollout.score("action_completion"),
            "judge a-judge, prompt " in rollout.score("action_completion").explanation,
        )
        assert "a-judge" == (rollout.drafts[0].verdict or {})["judge"]["model"]
    assert [] == [path for path in project.directory.rglob("*") if path.is_file() and b"very-secret-key" in path.read_bytes()]


@pytest.mark.slow
def test_a_key_that_is_missing(project: Project, other_engine: str) -> None:
    """If the judge's key is missing, an agent is not started, and a scorer has no score. Both errors name the variable."""
    judge = {"url": other_engine, "model": "a-judge", "api_key": "NO_SUCH_KEY"}
    project.suite("one", scenarios=1, agent={"kind": "self_evaluating", "evaluator_llm": judge})
    asks = "def test_goals(rollout):\n    assert rollout.score('action_completion') == 1.0\n"
    project.suite("two", scenarios=1, scorers=["tsq", "action_completion"], judge=judge, test=asks)

    project.run("scenarios", "--agentbench-retries=0").assert_outcomes(errors=2)
    agent, scorer = sorted(project.rollouts, key=lambda rollout: rollout.suite)

    sentence = f"{other_engine} needs an API key: the environment variable NO_SUCH_KEY is not set"
    assert ("infra_error", sentence, ()) == (agent.status, agent.reason, agent.calls)
    assert ("ok", {"action_completion": f"judge_error: {sentence}"}) == (scorer.status, scorer.score_errors)


@pytest.fixture
def router() -> Iterator[Router]:
    with routing() as router:
        yield router


@pytest.mark.slow
def test_labels(project: Project, router: Router) -> None:
    """For a stack that knows rollouts, the judge's calls are a separate program, which is released like the agent's."""
    project.write("backends/router.yaml", json.dumps({"kind": "url", "url": router.url, "labels": "thunderagent"}))
    project.suite(scenarios=1, agent={"kind": "self_evaluating", "max_retries": 0})

    # The engine is not a judge, so its verdict cannot be parsed.
    project.run("scenarios/shop", "--agentbench-backend=router", "--agentbench-retries=0").assert_outcomes(errors=1)
    programs = {body["program_id"]: JUDGE in body["messages"][0]["content"] for _, body in router.chats}

    assert {False, True} == {*programs.values()}
    assert all(id.endswith("-judge") == is_judge for id, is_judge in programs.items())
    assert {(id, True) for id in programs} == set(router.releases)
