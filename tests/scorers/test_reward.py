"""The scorer `reward`."""

from __future__ import annotations

import pytest

from pytest_agentbench.records import Rollout
from pytest_agentbench.records.rollout import Verification
from pytest_agentbench.scorers.reward import reward
from pytest_agentbench.suites.suite import Scenario

SCENARIO = Scenario("task", ())


def rollout(verification: Verification | None) -> Rollout:
    return Rollout("suite", "task", "default", 1, "ok", verification=verification)


def test_reward() -> None:
    """The main reward is the score, all rewards are its parts, and the first failed check is the explanation."""
    score = reward(SCENARIO, rollout(Verification(0.5, {"reward": 0.5, "speed": 3.0}, first_failure="test_port")))

    assert (0.5, {"reward": 0.5, "speed": 3.0}) == (float(score), score.parts)
    assert "the first check that failed: test_port" == score.explanation
    assert "" == reward(SCENARIO, rollout(Verification(1.0, {"reward": 1.0}))).explanation


@pytest.mark.parametrize(
    ("verification", "words"), [(None, "was not verified"), (Verification(-0.5), "is -0.5"), (Verification(1.5), "is 1.5, .* 0 to 1")]
)
def test_no_reward(verification: Verification | None, words: str) -> None:
    """A rollout that was not verified has no score, and neither has a reward that is not between 0 and 1."""
    with pytest.raises(ValueError, match=words):
        reward(SCENARIO, rollout(verification))
