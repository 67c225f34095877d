"""Are the tools called that the data set expects? `pytest -m bfcl -k live_multiple` runs one category."""

from __future__ import annotations

from pytest_agentbench import Rollout


def test_calls(rollout: Rollout, thresholds: dict[str, float]) -> None:
    assert rollout.score("tsq") >= thresholds.get("tsq", 0.0)
