"""Rollouts of a shop in which `find` is the expected tool."""

from __future__ import annotations

from typing import Any

from pytest_agentbench.records import Rollout, Score, ToolCall


def rollout(scenario: str, *calls: str, tsq: float = 0.0, trial: int = 1, status: str = "ok", **keys: Any) -> Rollout:
    """Returns a rollout that called these tools. After an agent error there is no score."""
    made = tuple(ToolCall(name, {}, 1) for name in calls)
    scores = {} if status == "agent_error" else {"tsq": Score(tsq)}
    return Rollout("shop", scenario, "default", trial, status, tool_calls=made, expected=({"tool": "find"},), scores=scores, **keys)
