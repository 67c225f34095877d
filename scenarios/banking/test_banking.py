"""Does the agent call the tools that each customer's message asks for?"""

from __future__ import annotations

from pytest_agentbench import Rollout


def test_tool_selection(rollout: Rollout, thresholds: dict[str, float]) -> None:
    assert rollout.score("tsq") >= thresholds["tsq"]
