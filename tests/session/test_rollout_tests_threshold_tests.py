"""Tests that compare scores with thresholds, and which of their failures are left to the gate."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_agentbench.errors import NoScore
from pytest_agentbench.records import SHARE, Rollout, Scale, Score
from pytest_agentbench.session.rollout_tests import NotedThresholds, is_left_to_gate

THRESHOLDS = {"tsq": 0.5, "polite": 1.0, "tsq.mean": 0.9, "mistakes": 2.0}
SCALES = {"tsq": SHARE, "polite": SHARE, "mistakes": Scale(better="lower", declared=True)}


def only_tsq(rollout: Rollout, thresholds: Any) -> None:
    assert rollout.score("tsq") >= thresholds["tsq"]


def tsq_then_polite(rollout: Rollout, thresholds: Any) -> None:
    assert rollout.score("tsq") >= thresholds["tsq"]
    assert rollout.score("polite") >= thresholds["polite"]


def few_mistakes(rollout: Rollout, thresholds: Any) -> None:
    assert rollout.score("mistakes") <= thresholds.get("mistakes", 0)


def all_of_them(rollout: Rollout, thresholds: Any) -> None:
    for name, value in dict(thresholds).items():
        if name in ("tsq", "polite"):
            assert rollout.score(name) >= value


def a_tool_then_tsq(rollout: Rollout, thresholds: Any) -> None:
    assert rollout.tools
    assert rollout.score("tsq") >= thresholds["tsq"]


@pytest.mark.parametrize(
    ("test", "scores", "left"),
    [
        (only_tsq, {"tsq": 0.0, "polite": 1.0}, True),
        (only_tsq, {"tsq": 0.0, "polite": 0.0}, True),
        (tsq_then_polite, {"tsq": 0.0, "polite": 1.0, "mistakes": 9}, True),
        (tsq_then_polite, {"tsq": 0.0, "polite": 0.0}, False),
        (tsq_then_polite, {"tsq": 1.0, "polite": 0.0}, False),
        (few_mistakes, {"tsq": 0.0, "mistakes": 3}, False),
        (all_of_them, {"tsq": 0.0, "polite": 1.0, "mistakes": 1}, True),
        (all_of_them, {"tsq": 0.0, "polite": 0.0, "mistakes": 1}, False),
        (a_tool_then_tsq, {"tsq": 0.0}, False),
        (only_tsq, {}, True),
        (tsq_then_polite, {}, False),
    ],
)
@pytest.mark.parametrize("given", [NotedThresholds, dict], ids=["the-fixture", "overridden"])
def test_only_compared_scores_are_left_to_the_gate(
    test: Callable[..., None], scores: dict[str, float], left: bool, given: type[dict[str, float]]
) -> None:
    """With `tsq` compared, a failure is left to the gate if the test's rollout misses its threshold, and no other one of the test."""
    status = "ok" if scores else "agent_error"
    rollout = Rollout("shop", "shop-0", "default", 1, status, scores={name: Score(value) for name, value in scores.items()})
    names = [name for name in test.__code__.co_consts if name in THRESHOLDS]
    thresholds = given(THRESHOLDS if given is NotedThresholds else {name: THRESHOLDS[name] for name in names or ("tsq", "polite")})
    if test is a_tool_then_tsq and given is dict:
        pytest.skip("a dictionary notes nothing, so the threshold counts as read")

    with pytest.raises(AssertionError) as failure:
        test(rollout, thresholds)
    item: Any = SimpleNamespace(function=test, funcargs={"thresholds": thresholds})

    assert left == is_left_to_gate(item, failure.value, rollout, SCALES, ["tsq"])
    assert isinstance(failure.value, NoScore) == (not scores)
    assert not is_left_to_gate(item, failure.value, rollout, SCALES, [])
