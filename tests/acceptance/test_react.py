"""The banking suite through the agent `react`, on the embedded engine."""

from __future__ import annotations

import pytest

from tests.project import Project


@pytest.mark.slow
def test_banking_by_text(project: Project) -> None:
    """`--agentbench-agent=react` makes the same calls as the agent with native tools, one a turn, and its transcript is readable."""
    project.shipped("banking")
    made, means = {}, {}
    for agent in ("tool_calling", "react"):
        result = project.run("scenarios/banking", f"--agentbench-agent={agent}", "--agentbench-limit=10")

        result.assert_outcomes(passed=10)
        made[agent] = {rollout.scenario: [(call.name, call.arguments) for call in rollout.tool_calls] for rollout in project.rollouts}
        means[agent] = project.run_json["suites"]["banking"]["scores"]["tsq"]["mean"]["value"]

    assert made["tool_calling"] == made["react"]
    assert 0.5 < means["tool_calling"] == means["react"]
    for rollout in project.rollouts:
        assert ("ok", "react", 0.0) == (rollout.status, rollout.settings["kind"], rollout.settings["temperature"])
        assert [*range(1, len(rollout.tool_calls) + 1)] == [call.turn for call in rollout.tool_calls]
        assert len(rollout.tool_calls) + 1 == len(rollout.calls)
        system, question, *said = (message["content"] for message in rollout.messages)
        assert "{tools}" not in system
        assert question.startswith("Previous conversation history:\n\n\nQuestion: ")
        assert [True, False] * len(rollout.tool_calls) + [True] == [text.startswith("Thought: ") for text in said]
        assert said[-1].endswith(rollout.answer)
