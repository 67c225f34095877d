"""Data for tests of scorers."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_agentbench.records import Json, Rollout, ToolCall
from pytest_agentbench.suites.suite import Scenario, Tool


def records(
    actual: Sequence[ToolCall] = (), expected: Sequence[Json] = (), tools: Sequence[Tool] = (), answer: str = "", **metadata: object
) -> tuple[Scenario, Rollout]:
    """Returns a scenario that expects calls, and a rollout that made some."""
    messages = ({"role": "user", "content": "hello"},)
    scenario = Scenario(id="s1", messages=messages, tools=tuple(tools), expected=tuple(expected), metadata=metadata)
    return scenario, Rollout("bank", "s1", "default", 1, "ok", tool_calls=tuple(actual), answer=answer)
