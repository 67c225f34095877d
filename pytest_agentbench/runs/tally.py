"""Counts the rollouts of one suite under one variant while they are read, and the causes of missing scores."""

from __future__ import annotations

from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import takewhile
from operator import attrgetter

from pytest_agentbench.lib.error_texts import cause_of
from pytest_agentbench.metrics.suite_metrics import AnswerCounts
from pytest_agentbench.records import UNDECLARED, Rollout, Scale
from pytest_agentbench.runs.results import ScorerFailure, UnmeasuredRollout, WorstScore
from pytest_agentbench.runs.tasks_and_mistakes import MistakeCounts, Tasks
from pytest_agentbench.suites.suite import question

MOST = 10  # number of causes that run.json keeps


class ScorerFailures:
    """Counts failures of scorers by score and cause."""

    def __init__(self) -> None:
        self._causes: dict[tuple[str, str], ScorerFailure] = {}

    def add(self, rollout: Rollout) -> None:
        for score, error in rollout.score_errors.items():
            key = score, cause_of(error)
            known = self._causes.get(key)
            if known is None or rollout.scenario < known.first:
                self._causes[key] = ScorerFailure(score, error, (known.rollouts if known else 0) + 1, rollout.scenario)
            else:
                self._causes[key] = replace(known, rollouts=known.rollouts + 1)

    def summary(self) -> tuple[ScorerFailure, ...]:
        """Returns the most frequent causes. Equally frequent ones are sorted by their first scenario."""
        return tuple(sorted(self._causes.values(), key=lambda each: (-each.rollouts, each.first, each.score))[:MOST])


WORST = 5  # number of the worst scenarios that reports show


@dataclass
class SuiteTally:
    """The counts of one suite under one variant. `add` takes its rollouts in any order."""

    statuses: Counter[str] = field(default_factory=Counter)  # status -> number of rollouts
    clusters: dict[str, str | None] = field(default_factory=dict)  # scenario -> its cluster
    retried: int = 0  # number of rollouts with more than one attempt
    retried_scores: dict[str, dict[bool, dict[str, list[float]]]] = field(
        default_factory=lambda: defaultdict(lambda: {True: defaultdict(list), False: defaultdict(list)})
    )  # score -> whether the rollout was retried -> scenario -> values
    scores: dict[str, dict[str, list[float]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )  # score -> scenario -> values of evaluable rollouts
    agent_errors: dict[str, int] = field(default_factory=Counter)  # scenario -> number of rollouts with the status agent_error
    score_errors: Counter[str] = field(default_factory=Counter)  # score -> number of rollouts on which its scorer failed
    scorer_failures: ScorerFailures = field(default_factory=ScorerFailures)
    worst: list[WorstScore] = field(default_factory=list)  # worst trial of each scenario, the worst first, then by id
    best: float | None = None  # best measured value of the main score; None if there is none
    errors: list[UnmeasuredRollout] = field(default_factory=list)  # rollouts that are not evaluable, only the lowest ids
    answers: AnswerCounts = field(default_factory=AnswerCounts)
    mistakes: MistakeCounts = field(default_factory=MistakeCounts)
    tasks: Tasks = field(default_factory=Tasks)
    without_calls: int = 0  # number of evaluable rollouts without an LLM call
    sandboxes: set[str] = field(default_factory=set)  # kinds of sandboxes that ran programs of models

    def add(self, rollout: Rollout, main_score: str, scale: Scale = UNDECLARED) -> None:
        """Counts a rollout. `scale` is the scale of the suite's main score."""
        self.answers.add(rollout)
        self.mistakes.add(rollout)
        self.tasks.add(rollout)
        self.sandboxes |= {rollout.sandbox} - {""}
        self.statuses[rollout.status] += 1
        self.clusters[rollout.scenario] = rollout.cluster
        self.retried += bool(rollout.earlier_attempts)
        self.without_calls += rollout.evaluable and not any(each.calls or each.other_calls for each in rollout.attempts)
        for name, score in rollout.scores.items():
            self.scores[name][rollout.scenario].append(float(score))
            self.retried_scores[name][bool(rollout.earlier_attempts)][rollout.scenario].append(float(score))
        if rollout.status == "agent_error":
            self.agent_errors[rollout.scenario] += 1
        self.score_errors.update(rollout.score_errors.keys())
        self.scorer_failures.add(rollout)
        if not rollout.evaluable:
            insort(self.errors, UnmeasuredRollout(rollout.key.id, rollout.status, rollout.reason), key=attrgetter("id"))
            del self.errors[2 * WORST :]
        if main_score in rollout.scores:
            value = float(rollout.scores[main_score])
            self.best = value if self.best is None else min(self.best, value, key=scale.loss)
            self._keep_worst(_worst_score(rollout, main_score), scale)

    def _keep_worst(self, new: WorstScore, scale: Scale) -> None:
        """Keeps the worst trial of each scenario. A scenario that was dropped from the list returns if a worse trial is added."""

        def order(each: WorstScore) -> tuple[float, str]:
            return -scale.loss(each.score), each.id

        kept = next((each for each in self.worst if each.scenario == new.scenario), None)
        if kept is None or order(new) < order(kept):
            self.worst = [each for each in self.worst if each is not kept]
            insort(self.worst, new, key=order)
            del self.worst[WORST:]

    def worst_first(self, questions: Mapping[str, str], scale: Scale) -> tuple[WorstScore, ...]:
        """Returns the worst scores, without those equal to the best possible value (or to the best measured one if that is unknown).

        `questions` maps known scenarios to their questions.
        """
        best = self.best if scale.best is None else scale.best
        return tuple(replace(each, question=questions.get(each.scenario, each.question)) for each in self.worst if each.score != best)


def _worst_score(rollout: Rollout, score: str) -> WorstScore:
    return WorstScore(
        id=rollout.key.id,
        scenario=rollout.scenario,
        question=question([*takewhile(lambda message: message.get("role") != "assistant", rollout.messages)]),
        score=float(rollout.scores[score]),
        explanation=rollout.scores[score].explanation,
        expected_tools=tuple(rollout.expected_tools),
        actual_tools=tuple(rollout.tools),
    )
