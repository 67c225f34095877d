"""The scorer `reward`: the reward that the verifier of a Harbor task gave."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_agentbench.records import Rollout, Score
from pytest_agentbench.scorers.declaration import scorer

if TYPE_CHECKING:
    from pytest_agentbench.suites.suite import Scenario


@scorer(range=(0, 1), threshold=1.0)
def reward(scenario: Scenario, rollout: Rollout) -> Score:
    """Returns the main reward of a task that ran in a sandbox, from 0 to 1.

    The parts are all rewards that the task's verifier wrote, by name. The explanation names the first check that failed. A rollout that was
    not verified, and a reward outside of the range, give no score. A rollout passes at 1.0 if the suite sets no threshold.
    """
    verification = rollout.verification
    if verification is None:
        raise ValueError("the rollout was not verified; use the scorer reward only in suites of Harbor tasks, which run in a sandbox")
    if not 0 <= verification.reward <= 1:
        raise ValueError(f"the reward is {verification.reward:g}, but must be from 0 to 1; correct the task's verifier")
    if verification.tampered:
        return Score(0.0, {}, f"the verification was tampered with: {verification.tampered}")
    failed = verification.first_failure
    return Score(verification.reward, verification.rewards, f"the first check that failed: {failed}" if failed else "")
