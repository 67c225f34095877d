"""Answers that are right or wrong, and how sure they are: accuracy and calibration of a score."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from pytest_agentbench.records import Rollout
from pytest_agentbench.stats.binary import wilson_interval
from pytest_agentbench.stats.calibration import calibration

#: Parts of a score: whether a judge decided it (a score without this part is about no answer), and how sure the answer is, from 0 to 1.
JUDGED, CONFIDENCE = "judged", "confidence"


@dataclass(frozen=True, kw_only=True)
class AnswersSummary:
    """How often a score's [answers](hle.md#accuracy-and-calibration) are right, and whether they know it."""

    questions: int  # scenarios
    answers: int  # rollouts that were scored, and those of agents that raised, which count as wrong
    judged: int  # of them, those that a judge decided
    accuracy: float  # share of right answers, of each question first
    accuracy_low: float  # 95 % interval by Wilson, of as many trials as there are questions
    accuracy_high: float  # its upper end
    confident: int  # scored answers that say how sure they are
    confidence: float | None  # what those say in the mean, from 0 to 1; null where none does
    calibration_error: float | None  # of the same, from 0 to 1: RMS, bins of 100 answers
    calibration_low: float | None  # 95 % interval; null of a single question
    calibration_high: float | None  # its upper end
    bins: int  # of the calibration error; 0 where there is none


@dataclass
class AnswerCounts:
    """Those of a suite's scores, counted while rollouts are read."""

    scored: dict[str, dict[str, list[tuple[float, float | None]]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )  # score -> scenario -> (value, confidence)
    judged: Counter[str] = field(default_factory=Counter)  # score -> answers
    failed: Counter[str] = field(default_factory=Counter)  # scenario -> rollouts in which the agent raised

    def add(self, rollout: Rollout) -> None:
        self.failed[rollout.scenario] += rollout.status == "agent_error"
        for name, score in rollout.scores.items():
            if JUDGED in score.parts:
                self.scored[name][rollout.scenario].append((float(score), score.parts.get(CONFIDENCE)))
                self.judged[name] += bool(score.parts[JUDGED])

    def summary(self) -> dict[str, AnswersSummary]:
        """Of each score that is about answers."""
        return {name: self._of(name) for name in self.scored}

    def _of(self, name: str) -> AnswersSummary:
        questions = dict(sorted(self.scored[name].items()))  # the order of equal confidences must not be that of the clock
        values = {scenario: [value for value, _ in each] for scenario, each in questions.items()}
        for scenario, count in self.failed.items():
            values[scenario] = [*values.get(scenario, ()), *[0.0] * count]
        shares = [math.fsum(each) / len(each) for each in values.values() if each]
        accuracy = math.fsum(shares) / len(shares)
        low, high = wilson_interval(accuracy, len(shares))
        sure = [[*_confident(each)] for each in questions.values()]
        stated = [confidence for each in sure for confidence, _ in each]
        error = calibration(sure) if stated else None
        return AnswersSummary(
            questions=len(shares),
            answers=sum(map(len, values.values())),
            judged=self.judged[name],
            accuracy=accuracy,
            accuracy_low=low,
            accuracy_high=high,
            confident=len(stated),
            confidence=math.fsum(stated) / len(stated) if stated else None,
            calibration_error=error.error if error else None,
            calibration_low=error.low if error else None,
            calibration_high=error.high if error else None,
            bins=error.bins if error else 0,
        )


def _confident(answers: list[tuple[float, float | None]]) -> Iterator[tuple[float, bool]]:
    return ((confidence, value >= 1) for value, confidence in answers if confidence is not None)
