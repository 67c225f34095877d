"""Scores as the `action_completion_evaluator` of NVIDIA's NeMo Agent Toolkit does in its mode without a model: it searches for words.

Its quirks are included: words match inside other words ("get" in "target"), a scenario without goals gets 1.0, and a goal that names
actions is completed if the answer names any of them. `action_completion` uses a judge instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_agentbench.records import Rollout, Score
from pytest_agentbench.scorers.action_completion import goals_of
from pytest_agentbench.scorers.declaration import scorer

if TYPE_CHECKING:
    from pytest_agentbench.suites.suite import Scenario

ACTIONS = (
    "check", "transfer", "pay", "send", "block", "unblock", "update", "change", "view", "get", "set", "cancel", "increase", "decrease",
    "report", "dispute",
)  # fmt: skip


@scorer(range=(0, 1))
def nat_action_completion(scenario: Scenario, rollout: Rollout) -> Score:
    """Returns the share of `user_goals` that the agent's answer seems to address.

    It compares words, as NVIDIA's NeMo Agent Toolkit does without a model. The answer has to contain one of the goal's verbs, such as
    "transfer", or one of its longer words if it has no known verb.
    """
    goals = goals_of(scenario)
    if not goals:
        return Score(1.0, {"goals": 0, "completed": 0}, "no goals; the toolkit counts that as complete")
    left = [goal for goal in goals if not addressed(goal, rollout.answer)]
    done = len(goals) - len(left)
    return Score(done / len(goals), {"goals": len(goals), "completed": done}, f"not addressed: {', '.join(map(repr, left)) or 'none'}")


def addressed(goal: str, response: str) -> bool:
    """Returns whether a response contains one of the goal's actions (ACTIONS), or any of its longer words if it has no action."""
    goal, response = goal.lower(), response.lower()
    words = [action for action in ACTIONS if action in goal] or [word for word in goal.split() if len(word) > 3]
    return any(word in response for word in words)
