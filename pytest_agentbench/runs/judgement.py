"""Judges the rollouts of a run: which ones failed, by all their tests and by all thresholds for each scenario.

report.html (with its comparison of runs and arms) and `agentbench show --failed` use this judgement.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from pytest_agentbench.records import Rollout, Scale, scale_in
from pytest_agentbench.records.rollout import missed_scores, scenario_thresholds
from pytest_agentbench.runs.run_file import Failure, OutcomeCounts, Run


class SuiteTerms(Protocol):
    """What a rollout of a suite has to reach."""

    @property
    def thresholds(self) -> Mapping[str, float]: ...

    @property
    def scales(self) -> Mapping[str, Scale]: ...


@dataclass(frozen=True)
class Judgement:
    """The judgement of one rollout."""

    passed: bool | None  # None if no threshold and no failed test judges the rollout
    missed: tuple[str, ...] = ()  # scores that are worse than their threshold
    messages: tuple[str, ...] = ()  # messages of its failed tests


@dataclass
class Judge:
    """Judges rollouts by the thresholds of their suites and by the failed tests of a run."""

    suites: Mapping[str, SuiteTerms] = field(default_factory=dict)  # suite, or `suite-variant` -> its thresholds and scales
    tests: OutcomeCounts | None = None  # outcomes of the tests; None if they are not known yet

    def __post_init__(self) -> None:
        self._messages: dict[str, list[str]] = {}  # rollout -> messages of its failed tests
        failed = [each for each in self.tests.failures if each.outcome == "failed"] if self.tests else []
        for each in failed:
            self._messages.setdefault(_rollout_of(each), []).append(each.message)
        self._is_complete = self.tests is None or len(failed) == self.tests.failed  # run.json does not list every failure

    @classmethod
    def of(cls, run: Run) -> Judge:
        return cls(run.suites, run.tests)

    def judge(self, rollout: Rollout) -> Judgement:
        """Returns the judgement of a rollout.

        A failed test, a score worse than its threshold, and an agent's error with a threshold are failures. Without a failure, a rollout
        has passed if its suite has thresholds and the rollout has all scores that they are about.
        """
        terms = self.suites.get(rollout.key.group)
        limits = _deciding(terms) if terms else {}
        missed = missed_scores(rollout, limits, terms.scales) if terms else []
        measured = tuple(name for name in missed if name in rollout.scores)
        messages = self._messages.get(str(rollout.key)) or self._messages.get(rollout.key.id, [])
        if messages or measured or (limits and rollout.status == "agent_error"):
            return Judgement(passed=False, missed=measured, messages=tuple(messages))
        return Judgement(passed=True if limits and not missed and self._is_complete else None)


def _deciding(terms: SuiteTerms) -> dict[str, float]:
    """Returns the thresholds for each scenario that a score can miss. One at the worst value of the scale judges nothing."""
    limits = scenario_thresholds(terms.thresholds)
    return {name: limit for name, limit in limits.items() if limit != scale_in(terms.scales, name).worst}


def _rollout_of(failure: Failure) -> str:
    """Returns the rollout of a failed test, or the id of its test if an earlier version wrote the run."""
    return failure.rollout or failure.id.rpartition("::")[2].partition("[")[2].removesuffix("]")
