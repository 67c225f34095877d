"""The orchestrator, from suite.yaml to the report: its own model, experts at another endpoint, and the usage of each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_agentbench.records import Json
from tests.engines import engine
from tests.project import Project

ROUNDS = [
    {"match": {"turn": 0}, "tool_calls": [{"name": "enhance_reasoning", "arguments": {"model": "reasoner-1"}}]},
    {"match": {"turn": 1}, "tool_calls": [{"name": "answer", "arguments": {"model": "answer-1"}}]},
]
PROGRAM = "```python\nprint(1)\n```"


@pytest.fixture
def experts(tmp_path: Path) -> Iterator[str]:
    """The URL of an endpoint whose model writes programs and answers."""
    rules: list[Json] = [{"match": {"contains": "Instead of answering"}, "text": PROGRAM}, {"text": "<answer>There is one.</answer>"}]
    with engine(tmp_path, rules, model="expert") as url:
        yield f"{url}/v1"


def test_a_session(project: Project, experts: str) -> None:
    """The model's own calls are measured, experts' calls are counted by role, their time counts as tools, and programs run only in a
    sandbox.
    """
    roles = {name: {"url": experts, "model": "expert"} for name in ("reasoner", "answer")}
    agent = {"kind": "orchestrator", "context": "transcript", "run_code": False}
    project.backend(ROUNDS)
    path = project.suite(agent=agent, roles=roles, thresholds={"tsq": 0})

    project.run("scenarios/shop").assert_outcomes(passed=3)

    used = project.run_json["suites"]["shop"]["roles"]
    assert {"agent": (6, 6), "answer": (3, 0), "reasoner": (3, 0)} == {
        name: (role["calls"], role["measured"]) for name, role in used.items()
    }
    for rollout in project.rollouts:
        assert ("There is one.", 2, ["enhance_reasoning", "answer"]) == (rollout.answer, rollout.turns, rollout.tools)
        assert ["reasoner", "answer"] == [call.role for call in rollout.other_calls]
    split = project.run_json["performance"]["split"]
    assert split["tools"]["share"] > 0
    path.write_text(json.dumps({**json.loads(path.read_text()), "agent": {"kind": "orchestrator"}}))
    result = project.run("scenarios/shop")
    result.stdout.fnmatch_lines(["*agent: 'orchestrator' works in a sandbox, and scenario 'shop-0' is not a task*"])


NO_MAX_TOKENS = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."


@pytest.mark.slow
def test_an_expert_that_refuses_a_field(project: Project, tmp_path: Path) -> None:
    """If an expert refuses a field, the failed call is recorded with the message.

    The next call and later rollouts use the accepted field.
    """
    log = tmp_path / "requests"
    rules: list[Json] = [{"match": {"call": 1}, "status": 400, "message": NO_MAX_TOKENS}, {"text": "<answer>There is one.</answer>"}]
    project.backend([ROUNDS[1] | {"match": {"turn": 0}}])
    with engine(tmp_path, rules, model="expert", request_log=str(log)) as url:
        role = {"url": f"{url}/v1", "model": "expert"}
        project.suite(agent={"kind": "orchestrator", "run_code": False}, roles={"reasoner": role, "answer": role}, thresholds={"tsq": 0})

        project.run("scenarios/shop", "--agentbench-concurrency=1").assert_outcomes(passed=3)

    limits = [[name for name in json.loads(line) if name.startswith("max_")] for line in log.read_text().splitlines()]
    assert [["max_tokens"], *[["max_completion_tokens"]] * 3] == limits
    calls = [call for rollout in project.rollouts for call in rollout.other_calls]
    assert [f"HTTP 400: {NO_MAX_TOKENS}"] == [call.error for call in calls if call.error_kind]
    assert ({"ok"}, 4) == ({rollout.status for rollout in project.rollouts}, len(calls))


@pytest.mark.slow
def test_a_prompt_longer_than_the_servers_limit(project: Project, tmp_path: Path) -> None:
    """If only the server knows its context length, prompts that cannot fit are refused in each rollout before its first call."""
    with engine(tmp_path, ROUNDS, model="short", max_model_len=16384) as url:
        project.write("backends/short.yaml", f"kind: url\nurl: {url}/v1\n")
        project.suite(agent={"kind": "orchestrator", "run_code": False}, roles={"reasoner": {}, "answer": {}}, scenarios=1)

        result = project.run("scenarios/shop", "--agentbench-backend=short", "--agentbench-retries=0")

    result.assert_outcomes(errors=1)
    assert (0, "infra_error") == (len(project.rollouts[0].calls), project.rollouts[0].status)
    assert "agent: context_tokens is 27000, and the model accepts 16384 tokens" in project.rollouts[0].reason
