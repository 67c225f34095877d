"""Was every call of a session answered? What the answers say does not count."""

from __future__ import annotations

from pytest_agentbench import Rollout


def test_answered(rollout: Rollout, thresholds: dict[str, float]) -> None:
    assert rollout.score("answered") >= thresholds["answered"], rollout.score("answered").explanation
