"""The toolkit's offline action completion, compared with results of the toolkit's own function."""

from __future__ import annotations

import pytest

from pytest_agentbench.records import Rollout
from pytest_agentbench.scorers.nat_action_completion import addressed, nat_action_completion
from pytest_agentbench.suites.suite import Scenario

VECTORS = [  # response, goal, done
    ("I have transferred the money", "Transfer $500 to savings", True),
    ("Your balance is $5", "Check my account balance", False),
    ("The branch is near", "Find a nearby branch", True),
    ("We will target it", "Get EUR rates", True),
    ("display", "Pay bill", False),
    ("", "Pay bill", False),
    ("", "Find a nearby branch", False),
]


@pytest.mark.parametrize(("response", "goal", "done"), VECTORS)
def test_vectors(response: str, goal: str, done: bool) -> None:
    """Words match inside other words, as in the toolkit."""
    assert done == addressed(goal, response)


@pytest.mark.parametrize(
    ("goals", "answer", "value", "left"),
    [
        (["Transfer $500", "Check my balance"], "transferred", 0.5, "not addressed: 'Check my balance'"),
        (["Transfer $500"], "Transferred", 1.0, "not addressed: none"),
        ([], "", 1.0, "no goals; the toolkit counts that as complete"),
        (None, "anything", 1.0, "no goals; the toolkit counts that as complete"),
    ],
)
def test_score(goals: list[str] | None, answer: str, value: float, left: str) -> None:
    """The score is the share of goals that have a word in the final answer. Without goals it is 1."""
    scenario = Scenario("s-0", (), metadata={"user_goals": goals} if goals is not None else {})
    score = nat_action_completion(scenario, Rollout("bank", "s-0", "default", 1, "ok", answer=answer))

    assert (value, left) == (score, score.explanation)
