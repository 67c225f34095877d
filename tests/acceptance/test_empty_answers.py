"""Empty answers of a model, from the backend to the record."""

from __future__ import annotations

from pytest_agentbench.agents.react import EMPTY_ANSWER
from pytest_agentbench.records import Json
from tests.project import Project

TEST = "def test_it(rollout):\n    assert rollout.score('tsq') == 1\n"


def test_empty_answers(project: Project) -> None:
    """A complete empty answer, streamed or not, is an agent_error.

    If the agent repeats the call, a later answer counts. An empty answer that the server aborted is an infra_error.
    """
    first: list[Json] = [{"match": {"contains": f"Customer {name}:", "call": 1}, "text": ""} for name in ("patient-0", "text-0")]
    always: list[Json] = [{"match": {"contains": f"Customer {name}:"}, "text": ""} for name in ("shop-0", "text-1")]
    blank: Json = {"match": {"contains": "Customer shop-1:"}, "text": " \n"}
    broken: Json = {"match": {"contains": "Customer shop-2:"}, "text": "", "finish_reason": "abort"}
    project.backend([*first, *always, blank, broken, {"text": "Final Answer: yes"}])
    project.suite("shop", 3, expected=(), thresholds={}, test=TEST, variants={"whole": {"agent": {"stream_upgrade": False}}})
    project.suite("patient", 1, expected=(), thresholds={}, test=TEST, agent={"kind": "tool_calling", "max_empty_response_retries": 1})
    project.suite("text", 2, expected=(), thresholds={}, test=TEST, agent={"kind": "react"})

    result = project.run("scenarios", "--agentbench-retries=0", "--agentbench-variants=all")

    result.assert_outcomes(passed=2, failed=5, errors=2)
    rollouts = {rollout.key.id: rollout for rollout in project.rollouts}
    nothing = ("agent_error", "the model's answer is empty: no text and no tool call", [None])
    for id in ("shop-0", "shop-1", "shop-0-whole", "shop-1-whole"):
        assert nothing == (rollouts[id].status, rollouts[id].reason, [call.error_kind for call in rollouts[id].calls])
    for id in ("shop-2", "shop-2-whole"):
        assert ("infra_error", ["empty"]) == (rollouts[id].status, [call.error_kind for call in rollouts[id].calls])
    assert ("ok", "Final Answer: yes", 2) == (rollouts["patient-0"].status, rollouts["patient-0"].answer, rollouts["patient-0"].turns)
    assert ("ok", "yes", 2) == (rollouts["text-0"].status, rollouts["text-0"].answer, rollouts["text-0"].turns)
    assert ("agent_error", f"the model's answer is not in ReAct format: {EMPTY_ANSWER}") == (
        rollouts["text-1"].status,
        rollouts["text-1"].reason,
    )
    assert EMPTY_ANSWER == rollouts["text-0"].messages[-2]["content"]
