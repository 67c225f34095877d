"""Is the answer right? A judge decides if its text alone does not show that."""

from __future__ import annotations

from pytest_agentbench import Rollout


def test_answer(rollout: Rollout, thresholds: dict[str, float]) -> None:
    assert rollout.score("judged_answer") >= thresholds.get("judged_answer", 0.0)
