"""A model that says nothing, end to end."""

from __future__ import annotations

from pytest_agentbench.agents.react_text import NOTHING_SAID
from tests.project import Project


def test_answers_of_nothing(project: Project) -> None:
    """An empty answer is asked for again where the agent may, and is otherwise the backend's fault; it never counts as an answer."""
    empty = [{"match": {"contains": f"Customer {name}:", "call": 1}, "text": ""} for name in ("patient-0", "text-0")]
    always = [{"match": {"contains": f"Customer {name}:"}, "text": ""} for name in ("shop-0", "text-1")]
    project.backend([*empty, *always, {"text": "Final Answer: yes"}])
    project.suite("shop", 1, expected=(), thresholds={})
    project.suite("patient", 1, expected=(), thresholds={}, agent={"kind": "tool_calling", "max_empty_response_retries": 1})
    project.suite("text", 2, expected=(), thresholds={}, agent={"kind": "react"})
    for name in ("shop", "patient", "text"):
        project.write(f"scenarios/{name}/test_{name}.py", "def test_it(rollout):\n    assert rollout.score('tsq') == 1\n")

    result = project.run("scenarios", "--agentbench-retries=0")

    result.assert_outcomes(passed=2, errors=2)
    rollouts = {rollout.scenario: rollout for rollout in project.rollouts}
    assert {"shop-0": "infra_error", "patient-0": "ok", "text-0": "ok", "text-1": "infra_error"} == {
        name: rollout.status for name, rollout in rollouts.items()
    }
    assert ("Final Answer: yes", "yes") == (rollouts["patient-0"].answer, rollouts["text-0"].answer)
    assert [["empty"], ["empty", None], ["empty", None], ["empty", "empty"]] == [
        [call.error_kind for call in rollouts[name].calls] for name in ("shop-0", "patient-0", "text-0", "text-1")
    ]
    assert NOTHING_SAID == rollouts["text-0"].messages[-2]["content"]
