"""Each test runs once for each scenario, and reads what the agent did. A score that is missing makes the test an ERROR."""

from __future__ import annotations

from pytest_agentbench import Rollout


def test_tools(rollout: Rollout, thresholds: dict[str, float]) -> None:
    """The agent called the right tools."""
    assert rollout.score("tsq") >= thresholds["tsq"]


def test_answer(rollout: Rollout, thresholds: dict[str, float]) -> None:
    """The answer is short enough."""
    assert rollout.score("short_answer") >= thresholds["short_answer"], rollout.score("short_answer").explanation
