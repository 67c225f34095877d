"""Is the answer right? Where its text does not settle it a judge says so."""

from __future__ import annotations

from pytest_agentbench import Rollout


def test_answer(rollout: Rollout, thresholds: dict[str, float]) -> None:
    assert rollout.score("judged_answer") >= thresholds.get("judged_answer", 0.0)
