"""What was found in a run: of each suite under each variant, of its prefix cache and its arms, and by the gate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from pytest_agentbench.backends.cache_state import CacheBlock
from pytest_agentbench.backends.telemetry.engine_stats import CacheHits
from pytest_agentbench.metrics.performance import GoodputSummary
from pytest_agentbench.metrics.suite_metrics import AnswersSummary, DraftsSummary, Efficiency, RoleUse
from pytest_agentbench.records import OPEN, Json, Scale
from pytest_agentbench.runs.tasks_and_mistakes import TasksSummary, Triage
from pytest_agentbench.stats.decisions import POPULATION, Decision, Suspect
from pytest_agentbench.stats.pass_rates import PassRate
from pytest_agentbench.suites.arms import Arm
from pytest_agentbench.suites.suite import DatasetInfo

MEASURED = ("ok", "limit", "agent_error")  # statuses that a mean knows of


@dataclass(frozen=True)
class Mean:
    """A [mean](metrics.md#means-and-intervals) over scenarios, with its interval."""

    value: float | None  # null of a pass rate where no scenario has so many trials
    low: float | None  # 95 % interval; null when there is none
    high: float | None
    of: str  # the [question](gates.md#two-questions) that the interval answers: `suite`, or `population` where a rule asks it
    scenarios: int  # what the mean is over
    clusters: int  # that those are in; as many as scenarios where the data name none
    method: str  # `within-scenario t`, `between-scenario t`; of the population `[clustered] [adjusted] t`; `none`


@dataclass(frozen=True)
class Means:
    """A score's two means. Over all: an agent's error counts as the worst value of the score's scale, and is left out if there is none."""

    mean: Mean | None  # over all; null when nothing was measured
    mean_evaluable: Mean | None  # over `ok` and `limit`


@dataclass(frozen=True)
class RetriedMeans:
    """Evaluable means of rollouts that were tried again, and of the others."""

    retried: Mean | None
    others: Mean | None


@dataclass(frozen=True, kw_only=True)
class PassMean(Mean):
    """pass@k or pass^k, over the scenarios with k trials."""

    k: int


@dataclass(frozen=True)
class ScenarioPasses:
    """How often one scenario passed."""

    scenario: str
    passed: int  # trials
    trials: int
    low: float  # 95 % interval of its rate
    high: float


@dataclass(frozen=True)
class Passes:
    """The [pass rates](metrics.md#pass-rates) of a suite."""

    score: str  # what decides whether a rollout passes: the first scorer
    floor: float  # from which on it passes
    pass_at: tuple[PassMean, ...]  # pass@k, k from 1 to the most trials of a scenario, ten at most
    pass_all: tuple[PassMean, ...]  # pass^k
    always: int  # scenarios with two trials or more that passed in all of them
    scenarios: tuple[ScenarioPasses, ...]  # the others with two trials or more, the lowest rate first, equal ones by id


@dataclass(frozen=True)
class ScoredBy:
    """What a score is from."""

    scorer: str  # name or import path
    options: Json  # as `suite.yaml` has them


@dataclass(frozen=True)
class QuarantineResult:
    """An entry of [`quarantine`](gates.md#quarantine), and how its tests ended."""

    scenario: str
    owner: str
    reason: str
    expires: str  # a date, the last day on which it holds
    tests: int = 0  # tests that read a rollout of it and ran
    passed: int = 0  # of them, those that passed


@dataclass(frozen=True)
class WorstScore:
    """The worst rollout of a scenario, by its first score."""

    id: str  # the test's id
    scenario: str
    question: str  # what the user asks, on one line, cut after 300 characters
    score: float
    explanation: str
    expected_tools: tuple[str, ...]  # in order, repeats included
    actual_tools: tuple[str, ...]


@dataclass(frozen=True)
class ScenarioScores:
    """The scores of one scenario, each the mean over its evaluable trials."""

    scenario: str
    scores: Mapping[str, float | None]  # score -> mean; null where no trial has one


@dataclass(frozen=True)
class ScorerFailure:
    """A cause for which a scorer gave no score."""

    score: str  # name of the score
    error: str  # of the first scenario: exception, message, and `(file:line)` of the last frame in a file of the user
    rollouts: int  # without the score for this cause
    first: str  # the first of their scenarios, by id


@dataclass(frozen=True)
class UnmeasuredRollout:
    """A rollout that was not measured."""

    id: str  # the test's id
    status: str
    reason: str


@dataclass(frozen=True)
class SuiteFacts:
    """What is known of a suite under one variant beside its rollouts."""

    dataset: DatasetInfo
    variant: str  # `default`, or the variant that this entry is about
    agent: Json  # the agent's settings, as `suite.yaml` and `--agentbench-set` have them
    folder: str  # where the suite was
    scorers: tuple[str, ...]  # names of its scores, the main one first
    scored_by: Mapping[str, ScoredBy]  # score -> its scorer
    scales: Mapping[str, Scale]  # score -> what [its scorer declares](scorers.md#declare-what-is-better)
    thresholds: Mapping[str, float]  # name -> value in force
    gate: tuple[str, ...]  # the rules of its `suite.yaml`, as they are written
    deterministic: bool  # whether its `suite.yaml` says that trials of a scenario never differ
    quarantined: tuple[QuarantineResult, ...]  # also of scenarios that did not run
    unsupported: Mapping[str, str]  # task whose tests are skipped -> what it [asks for that is not supported](suites.md#harbor-tasks)

    @property
    def main_score(self) -> str:
        """The first of its scores."""
        return self.scorers[0]

    def facts(self) -> dict[str, Any]:
        """Returns the fields of SuiteFacts by their names."""
        return {each.name: getattr(self, each.name) for each in fields(SuiteFacts)}


@dataclass(frozen=True)
class PlannedSuite:
    """A suite under one variant as a run asks it: all that its result is computed from beside the rollouts."""

    name: str  # the suite, or `suite-variant`
    facts: SuiteFacts
    questions: Mapping[str, str] = field(default_factory=dict)  # scenario -> what its user asks; for others the rollouts say it
    roles: Mapping[str, Json] = field(default_factory=dict)  # role -> its settings in `suite.yaml`, its prices among them
    population: tuple[str, ...] = ()  # scores of which a rule asks the population, so that their intervals are of it


@dataclass(frozen=True)
class SuiteResult(SuiteFacts):
    """A suite under one variant."""

    rollouts: Mapping[str, int]  # counts by [status](metrics.md#status)
    retried: int  # rollouts with more than one attempt
    retried_scores: Mapping[str, RetriedMeans]  # score -> means; empty when none was tried again
    scores: Mapping[str, Means]  # score -> its two means
    passes: Passes | None  # null where its first score has no floor, or nothing was measured
    efficiency: Efficiency
    answers: Mapping[str, AnswersSummary]  # score -> of its answers; empty where no score is about answers
    score_errors: Mapping[str, int]  # score -> rollouts on which its scorer raised
    scorer_failures: tuple[ScorerFailure, ...]  # ten causes at most, the most frequent first
    drafts: DraftsSummary | None  # of an agent that [judges itself](judges.md); null of any other
    roles: Mapping[str, RoleUse]  # [role](roles.md), `judge` and the `agent` itself among them; empty where no other called
    worst: tuple[WorstScore, ...]  # five scenarios by their worst first score, equal ones by id, without those at the best value
    errors: tuple[UnmeasuredRollout, ...]  # ten at most, by id
    scenarios: tuple[ScenarioScores, ...]  # all that ran, the worst first score first, equal ones by id, those without a score last
    triage: Triage | None  # null where nothing was measured
    tasks: TasksSummary | None  # null where nothing was verified
    sandboxes: tuple[str, ...]  # [kinds](sandboxes.md#without-docker) in which programs of models ran, of scenarios that are no tasks

    @property
    def main_mean(self) -> Mean | None:
        """Over all rollouts, of the first score."""
        return self.scores[self.main_score].mean

    @property
    def population(self) -> tuple[str, ...]:
        """Scores and pass rates of which a rule asks the population."""
        scores = [score for score, means in self.scores.items() if means.mean and means.mean.of == POPULATION]
        passes = ((False, self.passes.pass_at), (True, self.passes.pass_all)) if self.passes else ()
        return *scores, *(PassRate(every, rate.k).name for every, rates in passes for rate in rates if rate.of == POPULATION)

    @property
    def is_unknown(self) -> bool:
        """Whether thresholds are asked of it, and no rollout was measured, so that none is known to hold."""
        return bool(self.thresholds) and not any(self.rollouts[status] for status in MEASURED)


@dataclass(frozen=True)
class Cache:
    """How the [prefix cache](ab.md#the-state-of-the-prefix-cache) was made ready."""

    policy: str  # `cold`, `primed` or `carry`
    blocks: tuple[CacheBlock, ...] = ()  # of rollouts of the last session, in their order; none without arms under `carry`
    salted: Mapping[str, str] = field(default_factory=dict)  # arm (empty without) whose prompts were salted -> why there was no reset


@dataclass(frozen=True)
class ArmFacts:
    """What is known of the backends of a session that is over."""

    failure: str = ""  # why nothing could run any more
    failures: Mapping[str, str] = field(default_factory=dict)  # arm that is not there, or is gone -> why
    load_s: Mapping[str, float] = field(default_factory=dict)  # arm -> seconds that its start took
    in_sequence: bool = False  # one arm ran before the other


@dataclass(frozen=True, kw_only=True)
class ArmResult(Arm):
    """One arm, all suites together."""

    model: str | None  # as `backend.served_model`
    load_s: float | None  # seconds until its backend answered; null when it did not, and for agents
    failure: str  # why it is not there, or is gone; empty when all was well
    blocks: int  # of the last session
    rollouts: Mapping[str, int]  # counts by status
    calls: int
    failed_calls: int
    busy_s: float  # seconds in which any of its rollouts ran
    # `rollouts_per_hour` and all other metrics of a session in the [table](metrics.md#serving-metrics), over these seconds
    metrics: Mapping[str, float | None] = field(metadata=OPEN)
    goodput: GoodputSummary | None  # over these seconds; null without `--agentbench-slo`
    prefix_cache: CacheHits  # by the server's counters, its blocks together


@dataclass(frozen=True, kw_only=True)
class MetricCompared(Decision):
    """A metric under two of the arms."""

    suite: str  # suite, or `suite-variant`
    metric: str  # a score, or `ttft.p50` and the like
    base_arm: str  # the arm that the other one is compared with
    new_arm: str
    base: float | None  # of `base_arm`; milliseconds, or a mean
    new: float | None  # of `new_arm`
    finding: str  # `better`, `worse`, `faster`, `slower`, `no difference shown` or `inconclusive`


@dataclass(frozen=True)
class ArmsCompared:
    """[Arms](ab.md) against each other, paired by scenario."""

    arms: tuple[ArmResult, ...]  # the first is what the others are compared with
    order: str  # `interleaved` or `in sequence`
    comparisons: tuple[MetricCompared, ...]
    warnings: tuple[str, ...]  # sentences on what was not equal


@dataclass(frozen=True)
class BaselineRun:
    """The run that a suite was compared with."""

    run: str  # its `id`
    commit: str | None  # of the repository
    finished_at: str  # ISO 8601


@dataclass(frozen=True, kw_only=True)
class RuleResult(Decision):
    """A rule of the gate, and what was decided of it."""

    suite: str  # suite, or `suite-variant`
    rule: str  # as it was written
    kind: str  # `score`, `passes`, `latency`, `rate`, `share` or `goodput`
    vs_baseline: bool
    width: float | None = None  # of a score: the greatest possible difference of two values; null if it is unknown
    notes: tuple[str, ...] = ()  # what else is not as in the baseline
    suspects: tuple[Suspect, ...] = ()  # scenarios that fell: first those of which that [is claimed](gates.md#which-scenarios-got-worse)


@dataclass(frozen=True)
class InterimLook:
    """At a run after a whole round of trials."""

    round: int  # after this one
    verdict: str  # of the rules that are looked at: `PASS`, `FAIL` or `INCONCLUSIVE`
    stands: bool  # whether more rounds would not change it
    rules: tuple[RuleResult, ...]  # `confidence` is that of the look


@dataclass(frozen=True)
class RoundsResult:
    """Trials that were [added until the gate's verdict stood](gates.md#trials-until-the-verdict-stands)."""

    most: int  # rounds, so many at most
    ran: int  # whole ones, up to the last look; 0 where the run was broken off before the first
    stands: bool  # whether that look was the last because more trials would not change the verdict
    saved: int  # rollouts that were not run for it
    looks: tuple[InterimLook, ...]  # one after each round from the second on


@dataclass(frozen=True)
class EarlierRuns:
    """Runs of the same setup before this one in the same folder of reports ([what that is](gates.md#run-until-it-is-green))."""

    runs: int  # those that came to a verdict; 0 where the setup is not known, as without git
    not_passed: tuple[str, ...]  # of them, those that were not `PASS`, the oldest first: their `id`


@dataclass(frozen=True)
class GateResult:
    """The verdicts of all rules."""

    verdict: str  # `PASS`, `FAIL` or `INCONCLUSIVE` of all rules together
    decides: bool  # whether it has a say in the exit status: `--agentbench-verdict=gate`
    tests_below: int  # tests below a threshold that did not fail the session
    compared: tuple[str, ...]  # suites whose scores were compared with a baseline, so that the gate decides in place of thresholds
    baselines: Mapping[str, BaselineRun]  # suite, or `suite-variant`, -> the run that it was compared with
    rules: tuple[RuleResult, ...]  # of `suite.yaml`, of the command line, of thresholds, each in its order
    unmeasured: tuple[str, ...]  # suites of which too much was lost or could not be measured
