"""Whether the agent or the backend is responsible for a failed rollout, from the suite to the record."""

from __future__ import annotations

import pytest

from tests.project import FIND_THEN_ANSWER, Project

#: Calls the model once or twice and ignores errors.
CARELESS = """
from __future__ import annotations

from dataclasses import dataclass

from pytest_agentbench import Answer, Scenario


@dataclass(frozen=True)
class Careless:
    again: bool = False

    async def run(self, scenario: Scenario, llm, tools) -> Answer:
        for text in ("A lamp?", "A table?") if self.again else ("A lamp?",):
            try:
                reply = await llm.chat([*scenario.messages, {"role": "user", "content": text}])
            except Exception:
                continue
            return Answer(reply.text)
        return Answer("nothing")
"""

TEST = "def test_it(rollout):\n    assert rollout.score('tsq') >= 0\n"
BOOM = {"status": 500, "message": "boom"}
LONG = {"text": " ".join(["word"] * 10_000)}


def test_a_failed_call_that_the_agent_ignores(project: Project) -> None:
    """If the agent answers without a call that failed, the rollout is an infra_error. If a later call succeeds, the rollout is ok."""
    project.backend([{"match": {"contains": "A lamp?"}, **BOOM}, {"text": "here"}])
    project.suite(scenarios=1, test=TEST, agent={"kind": "./agent.py:Careless"}, variants={"patient": {"agent": {"again": True}}})
    project.write("scenarios/shop/agent.py", CARELESS)

    project.run("scenarios/shop", "--agentbench-variants=all", "--agentbench-retries=1").assert_outcomes(passed=1, errors=1)

    rollouts = {rollout.variant: rollout for rollout in project.rollouts}
    assert ("infra_error", "HTTP 500: boom; the agent answered without it", 2, {}) == (
        rollouts["default"].status,
        rollouts["default"].reason,
        rollouts["default"].attempt,
        rollouts["default"].scores,
    )
    assert ("ok", "here", 1) == (rollouts["patient"].status, rollouts["patient"].answer, rollouts["patient"].attempt)
    assert ["server_error", None] == [call.error_kind for call in rollouts["patient"].calls]


@pytest.mark.slow
@pytest.mark.parametrize(
    "rule",
    [
        pytest.param({"text": "late", "ttft_ms": 600_000}, id="first-token", marks=pytest.mark.slow),
        pytest.param({**LONG, "itl_ms": 1, "stall": {"after": 5, "ms": 600_000}}, id="next-token"),
    ],
)
def test_a_backend_that_hangs_until_time_is_up(project: Project, rule: dict[str, object]) -> None:
    """If a rollout's time runs out while a call waits for its first or next token, the backend is responsible, and the rollout has no
    score.
    """
    project.backend([FIND_THEN_ANSWER[0], rule])
    project.suite(scenarios=1, test=TEST, timeout=3)

    project.run("scenarios/shop", "--agentbench-retries=0").assert_outcomes(errors=1)

    (rollout,) = project.rollouts
    reason = "time: the rollout took longer than 3 s, while a call was waiting for a token of the backend"
    assert ("infra_error", reason, {}) == (rollout.status, rollout.reason, rollout.scores)
    assert [None, "client_gone"] == [call.error_kind for call in rollout.calls]


@pytest.mark.slow
def test_an_answer_that_streams_on_until_time_is_up(project: Project) -> None:
    """If a rollout's time runs out during an answer that is only long, the rollout ends at its limit and is scored as it is."""
    project.backend([FIND_THEN_ANSWER[0], {**LONG, "ttft_ms": 2500, "itl_ms": 5}])
    project.suite(scenarios=1, test=TEST, timeout=4)

    project.run("scenarios/shop").assert_outcomes(passed=1)

    (rollout,) = project.rollouts
    assert ("limit", "time: the rollout took longer than 4 s", 1.0) == (rollout.status, rollout.reason, rollout.score("tsq"))
    assert len(rollout.calls[-1].output) > 1
