"""The judgement of rollouts by all thresholds and all failed tests."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_agentbench.records import SHARE, Rollout, Scale, Score
from pytest_agentbench.runs.judgement import Judge, Judgement
from pytest_agentbench.runs.run_file import Failure, OutcomeCounts

SUITE: Any = SimpleNamespace(
    thresholds={"tsq": 0.5, "polite": 1.0, "mistakes": 2.0, "tsq.mean": 0.9},
    scales={"tsq": SHARE, "polite": SHARE, "mistakes": Scale(better="lower", declared=True)},
)
GOOD = {"tsq": 1.0, "polite": 1.0, "mistakes": 0}


def rollout(status: str = "ok", /, **scores: float) -> Rollout:
    return Rollout("shop", "shop-1", "default", 1, status, scores={name: Score(value) for name, value in scores.items()})


def outcomes(*failures: Failure, failed: int | None = None) -> OutcomeCounts:
    return OutcomeCounts(passed=9, failed=len(failures) if failed is None else failed, errors=0, skipped=0, failures=failures)


def failure(test: str, rollout: str = "", outcome: str = "failed") -> Failure:
    return Failure(test, "/shop/test_shop.py", 1, outcome, "assert 3 < 2\nmore", {}, rollout)


@pytest.mark.parametrize(
    ("judged", "expected"),
    [
        (rollout(**GOOD), Judgement(passed=True)),
        (rollout(**{**GOOD, "tsq": 0.4}), Judgement(passed=False, missed=("tsq",))),
        (rollout(**{**GOOD, "polite": 0.9}), Judgement(passed=False, missed=("polite",))),
        (rollout(**{**GOOD, "mistakes": 3}), Judgement(passed=False, missed=("mistakes",))),
        (rollout("agent_error"), Judgement(passed=False)),
        (rollout("infra_error"), Judgement(passed=None)),
        (rollout(tsq=1.0, polite=1.0), Judgement(passed=None)),
        (rollout(tsq=1.0, polite=0.0), Judgement(passed=False, missed=("polite",))),
    ],
)
def test_every_threshold_counts(judged: Rollout, expected: Judgement) -> None:
    """A score worse than its threshold is a failure, whichever score it is. Without all scores, a rollout has not passed."""
    assert expected == Judge({"shop": SUITE}).judge(judged)


@pytest.mark.parametrize(
    "failed", [failure("test_shop.py::test_x[strict-shop-1]", "shop[shop-1]"), failure("a/test_shop.py::test_x[shop-1]")]
)
def test_every_failed_test_counts(failed: Failure) -> None:
    """A failed test of a rollout is a failure although all scores are good. An error judged nothing, nor does a test of another rollout."""
    good = rollout(**GOOD)
    message = ("assert 3 < 2\nmore",)

    assert Judgement(passed=False, messages=message) == Judge({"shop": SUITE}, outcomes(failed)).judge(good)
    assert Judgement(passed=False, messages=message) == Judge({}, outcomes(failed)).judge(good)
    assert Judgement(passed=True) == Judge({"shop": SUITE}, outcomes(replace(failed, outcome="error"), failed=0)).judge(good)
    assert Judgement(passed=True) == Judge({"shop": SUITE}, outcomes(failure("t.py::test_x[a]", "other[shop-1]"))).judge(good)


def test_unknown_failures() -> None:
    """If run.json does not list every failed test, a rollout without a known failure is not judged rather than passed."""
    assert Judgement(passed=None) == Judge({"shop": SUITE}, outcomes(failure("t.py::test_x[a]"), failed=300)).judge(rollout(**GOOD))


def test_a_threshold_at_the_worst_value_judges_nothing() -> None:
    """No score can miss a threshold at the worst value of its scale."""
    suite: Any = SimpleNamespace(thresholds={"tsq": 0.0}, scales=SUITE.scales)

    assert Judgement(passed=None) == Judge({"shop": suite}).judge(rollout(tsq=0.0))
