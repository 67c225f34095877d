"""Is the task done when the agent says so? `pytest -m openthoughts -k log-forensics` runs one."""

from __future__ import annotations

from pytest_agentbench import Rollout


def test_task(rollout: Rollout, thresholds: dict[str, float]) -> None:
    assert rollout.score("reward") >= thresholds["reward"]
