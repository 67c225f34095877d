"""The `action_completion_evaluator` of NVIDIA's NeMo Agent Toolkit without its model, its quirks included: it looks for words.

Quirks: words are found inside other words ("get" in "target"), a scenario without goals has 1.0, and a goal that names an action is
done when the answer names any action of the goal. `action_completion` asks a judge instead.
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
    """The share of `user_goals` of which the agent's answer has a word."""
    goals = goals_of(scenario)
    if not goals:
        return Score(1.0, {"goals": 0, "completed": 0}, "no goals; the toolkit counts that as complete")
    left = [goal for goal in goals if not addressed(goal, rollout.answer)]
    done = len(goals) - len(left)
    return Score(done / len(goals), {"goals": len(goals), "completed": done}, f"not addressed: {', '.join(map(repr, left)) or 'none'}")


def addressed(goal: str, response: str) -> bool:
    """Whether the response contains an action that the goal contains, or, of a goal without one, any of its longer words."""
    goal, response = goal.lower(), response.lower()
    words = [action for action in ACTIONS if action in goal] or [word for word in goal.split() if len(word) > 3]
    return any(word in response for word in words)
