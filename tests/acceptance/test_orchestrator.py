"""The orchestrator, from suite.yaml to the report: its own model, experts at another endpoint, and what each of them took."""

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
    """The model's own calls are measured, experts' are counted by role, their time is the tools', and programs run only in a sandbox."""
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
    result.stdout.fnmatch_lines(["*agent: 'orchestrator' works in a sandbox, and scenario 'shop-0' is no task*"])
