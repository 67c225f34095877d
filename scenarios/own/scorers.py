"""Scorers of this suite. Each is a function of the scenario (labels included) and of the rollout, which is what the agent did."""

from __future__ import annotations

from pytest_agentbench import Rollout, Scenario, Score, scorer


@scorer(range=(0, 1))
def short_answer(scenario: Scenario, rollout: Rollout, *, words: int = 60) -> Score:
    """1 if the agent answered in a few words, else 0. Parameters after the `*` are options of the scorer in suite.yaml."""
    count = len(rollout.answer.split())
    return Score(0 < count <= words, explanation=f"the answer has {count} words, and 1 to {words} are wanted")
