"""Accuracy and calibration of a score: counted from literal records, and said in words."""

from __future__ import annotations

import json

import pytest

from pytest_agentbench.lib.codec import plain, read
from pytest_agentbench.metrics.answers import AnswerCounts
from pytest_agentbench.records import Rollout, Score
from pytest_agentbench.reports.answers import lines
from pytest_agentbench.runs.results import SuiteResult
from tests.made_runs import run_of


def rollout(scenario: str, value: float, confidence: float | None, *, judged: bool = False, trial: int = 1) -> Rollout:
    parts = {"judged": float(judged), **({} if confidence is None else {"confidence": confidence})}
    return Rollout("shop", scenario, "default", trial, "ok", scores={"judged_answer": Score(value, parts), "tsq": Score(1.0)})


def test_counts() -> None:
    """Questions weigh the same, an agent that raised is wrong, an answer that says no confidence is in the accuracy alone."""
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


def test_words() -> None:
    """A line on how often answers are right and who says so, and one on whether they know it; none where no score is about answers."""
    suite = run_of(*[rollout(f"b-{number}", float(number < 8), 0.75, judged=number > 9) for number in range(12)]).suites["shop"]

    accuracy, calibration = lines(suite)

    assert "0.667 [0.391, 0.862], 95 % interval by Wilson; 12 questions, 2 of 12 answers by the judge" == accuracy[1]
    assert calibration[1].startswith("RMS error 0.083 [0.000, ")
    assert calibration[1].endswith(" of 12 answers that are 0.750 sure in the mean, 1 bin")
    assert suite == read(SuiteResult, json.loads(json.dumps(plain(suite))))
    assert [] == [*lines(run_of(Rollout("shop", "b-0", "default", 1, "ok", scores={"tsq": Score(1.0)})).suites["shop"])]


def test_answers_without_confidence() -> None:
    """It is said that nothing is known."""
    accuracy, calibration = lines(run_of(rollout("b-0", 1.0, None)).suites["shop"])

    assert accuracy[1].startswith("1.000 [0.207, 1.000]")
    assert "unknown: no answer says how sure it is" == calibration[1]
