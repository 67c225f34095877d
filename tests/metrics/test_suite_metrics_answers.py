"""Accuracy and calibration of a score, computed from literal records."""

from __future__ import annotations

import json

import pytest

from pytest_agentbench.lib.codec import plain, read
from pytest_agentbench.metrics.suite_metrics import AnswerCounts
from pytest_agentbench.records import Rollout, Score
from pytest_agentbench.runs.results import SuiteResult
from tests.made_runs import run_of


def rollout(scenario: str, value: float, confidence: float | None, *, judged: bool = False, trial: int = 1) -> Rollout:
    parts = {"judged": float(judged), **({} if confidence is None else {"confidence": confidence})}
    return Rollout("shop", scenario, "default", trial, "ok", scores={"judged_answer": Score(value, parts), "tsq": Score(1.0)})


def test_counts() -> None:
    """Questions have equal weight, agent errors are wrong, and answers without a confidence count only for the accuracy."""
    answers = AnswerCounts()
    for each in (
        *(rollout("a", 1.0, 0.9), rollout("a", 0.0, 0.7, trial=2), rollout("b", 1.0, None, judged=True)),
        *(Rollout("shop", "c", "default", 1, "agent_error"), Rollout("shop", "d", "default", 1, "infra_error")),
        Rollout("shop", "d", "default", 2, "ok", score_errors={"judged_answer": "judge_error"}),
    ):
        answers.add(each)

    (name, found), *others = answers.summary().items()

    assert ("judged_answer", []) == (name, others)
    assert (3, 4, 1) == (found.questions, found.answers, found.judged)
    assert 0.5 == pytest.approx(found.accuracy)
    assert (0.0, 1.0) < (found.accuracy_low, found.accuracy_high) < (0.5, 1.0)
    assert [2, pytest.approx(0.8), pytest.approx(0.3)] == [found.confident, found.confidence, found.calibration_error]
    assert (None, None, 1) == (found.calibration_low, found.calibration_high, found.bins)


def test_a_summary_can_be_written_and_read() -> None:
    """run.json contains the summary of answers. A score that is not about answers has none."""
    suite = run_of(*[rollout(f"b-{number}", float(number < 8), 0.75, judged=number > 9) for number in range(12)]).suites["shop"]

    assert ["judged_answer"] == [*suite.answers]
    assert suite == read(SuiteResult, json.loads(json.dumps(plain(suite))))
    assert {} == run_of(Rollout("shop", "b-0", "default", 1, "ok", scores={"tsq": Score(1.0)})).suites["shop"].answers


def test_answers_without_confidence() -> None:
    """Answers without a confidence have an accuracy but no calibration."""
    found = run_of(rollout("b-0", 1.0, None)).suites["shop"].answers["judged_answer"]

    assert [1.0, pytest.approx(0.207, abs=0.001), 1.0] == [found.accuracy, found.accuracy_low, found.accuracy_high]
    assert (0, None, None) == (found.confident, found.confidence, found.calibration_error)
