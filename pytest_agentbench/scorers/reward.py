"""The reward from a task's verifier."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_agentbench.records import Rollout, Score
from pytest_agentbench.scorers.declaration import scorer

if TYPE_CHECKING:
    from pytest_agentbench.suites.suite import Scenario


@scorer(range=(0, 1), threshold=1.0)
def reward(scenario: Scenario, rollout: Rollout) -> Score:
    """Returns the main reward, from 0 to 1. Parts are all rewards by name. The explanation is the first check that failed."""
    verification = rollout.verification
    if verification is None:
        raise ValueError("the rollout was not verified; this scorer is for tasks that are carried out in a sandbox")
    if not 0 <= verification.reward <= 1:
        raise ValueError(f"the reward is {verification.reward:g}, and this scorer takes rewards from 0 to 1")
    if verification.tampered:
        return Score(0.0, {}, f"the verification was tampered with: {verification.tampered}")
    failed = verification.first_failure
    return Score(verification.reward, verification.rewards, f"the first check that failed: {failed}" if failed else "")
