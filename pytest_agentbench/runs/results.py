"""Records of the results in run.json: suites under variants, prefix cache, arms and gate."""

from __future__ import annotations

import math
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

MEASURED = ("ok", "limit", "agent_error")  # statuses of rollouts that means include


@dataclass(frozen=True)
class Mean:
    """A [mean](metrics.md#means-and-intervals) over scenarios with its interval."""

    value: float | None  # the mean; null for a pass rate if no scenario has k trials
    low: float | None  # lower end of the 95 % interval; null if there is none
    high: float | None  # upper end of the 95 % interval; null if there is none
    of: str  # [question](gates.md#two-questions) that the interval answers: `suite`, or `population` if a rule asks it
    scenarios: int  # number of scenarios
    clusters: int  # number of clusters of these scenarios; equal to `scenarios` if the data have no clusters
    method: str  # method of the interval: `within-scenario t`, `between-scenario t`, `[clustered] [adjusted] t` (population) or `none`


@dataclass(frozen=True)
class Means:
    """The two means of a score. `mean` counts an `agent_error` as the worst value of the scale, or leaves it out if there is none."""

    mean: Mean | None  # mean over all measured rollouts; null if there are none
    mean_evaluable: Mean | None  # mean over rollouts with the status `ok` or `limit`; null if there are none


@dataclass(frozen=True)
class RetriedMeans:
    """Means over evaluable rollouts, separately for retried ones and all others."""

    retried: Mean | None  # mean over retried rollouts; null if there are none
    others: Mean | None  # mean over the other rollouts; null if there are none


@dataclass(frozen=True, kw_only=True)
class PassMean(Mean):
    """A value of pass@k or pass^k over the scenarios with at least k trials."""

    k: int  # number of trials


@dataclass(frozen=True)
class ScenarioPasses:
    """The pass rate of one scenario."""

    scenario: str  # id of the scenario
    passed: int  # trials that passed
    trials: int  # measured trials
    low: float  # lower end of the 95 % interval of the pass rate
    high: float  # upper end of the 95 % interval of the pass rate


@dataclass(frozen=True)
class Passes:
    """The [pass rates](metrics.md#pass-rates) of a suite."""

    score: str  # score that decides whether a rollout passes: the main score
    floor: float  # threshold of that score
    pass_at: tuple[PassMean, ...]  # pass@k for k from 1 to the most trials of a scenario, at most 10
    pass_all: tuple[PassMean, ...]  # pass^k for the same k
    always: int  # number of scenarios with at least two trials that passed all of them
    scenarios: tuple[ScenarioPasses, ...]  # the other scenarios with at least two trials, the lowest pass rate first, then by id


@dataclass(frozen=True)
class ScoredBy:
    """The scorer that computes a score, and its options."""

    scorer: str  # name or import path of the scorer
    options: Json  # options of the scorer in `suite.yaml`


@dataclass(frozen=True)
class QuarantineResult:
    """An entry of [`quarantine`](gates.md#quarantine) with the results of its tests."""

    scenario: str  # id of the scenario
    owner: str  # owner of the entry
    reason: str  # reason for the quarantine
    expires: str  # last day of the quarantine, an ISO 8601 date
    tests: int = 0  # tests of the scenario that ran
    passed: int = 0  # tests of the scenario that passed


@dataclass(frozen=True)
class WorstScore:
    """The rollout of a scenario with the worst main score."""

    id: str  # id of the test
    scenario: str  # id of the scenario
    question: str  # question of the user on one line, truncated to 300 characters
    score: float  # main score
    explanation: str  # explanation of the scorer; empty if it gives none
    expected_tools: tuple[str, ...]  # names of the expected tools, in order and with repetitions
    actual_tools: tuple[str, ...]  # names of the called tools, in order and with repetitions


@dataclass(frozen=True)
class ScenarioScores:
    """The scores of one scenario, each the mean over its evaluable trials."""

    scenario: str  # id of the scenario
    scores: Mapping[str, float | None]  # score -> mean; null if no trial has this score


@dataclass(frozen=True)
class ScorerFailure:
    """A reason for which a scorer failed, with the rollouts that have no score because of it."""

    score: str  # name of the score
    error: str  # error in the first scenario: exception, message, and `(file:line)` of the last frame in user code
    rollouts: int  # rollouts without the score for this cause
    first: str  # id of the first of their scenarios, in alphabetical order


@dataclass(frozen=True)
class UnmeasuredRollout:
    """A rollout that is not evaluable: its status is neither `ok` nor `limit`."""

    id: str  # id of the test
    status: str  # [status](metrics.md#status) of the rollout
    reason: str  # reason for the status


@dataclass(frozen=True)
class SuiteFacts:
    """The facts about a suite under one variant that do not depend on its rollouts."""

    dataset: DatasetInfo  # the data set
    variant: str  # name of the variant, or `default`
    agent: Json  # settings of the agent, from `suite.yaml` and `--agentbench-set`
    folder: str  # folder of the suite when it ran
    scorers: tuple[str, ...]  # names of the scores, the main score first
    scored_by: Mapping[str, ScoredBy]  # score -> its scorer
    scales: Mapping[str, Scale]  # score -> scale that [its scorer declares](scorers.md#declare-what-is-better)
    thresholds: Mapping[str, float]  # name of the threshold -> value in force
    gate: tuple[str, ...]  # gate rules of `suite.yaml`, unchanged
    deterministic: bool  # whether `suite.yaml` declares that trials of a scenario never differ
    quarantined: tuple[QuarantineResult, ...]  # quarantined scenarios, also those that did not run
    unsupported: Mapping[str, str]  # task whose tests are skipped -> the [unsupported feature](suites.md#harbor-tasks) that it needs

    @property
    def main_score(self) -> str:
        """The name of the main score, which is the first one."""
        return self.scorers[0]

    def facts(self) -> dict[str, Any]:
        """Returns name -> value for the fields of SuiteFacts, without those of a subclass."""
        return {each.name: getattr(self, each.name) for each in fields(SuiteFacts)}


@dataclass(frozen=True)
class PlannedSuite:
    """The plan of a suite under one variant: what is needed besides rollouts to compute its result."""

    name: str  # suite, or `suite-variant`
    facts: SuiteFacts
    questions: Mapping[str, str] = field(default_factory=dict)  # scenario -> question of the user; for others it is taken from rollouts
    roles: Mapping[str, Json] = field(default_factory=dict)  # role -> its settings in `suite.yaml`, prices included
    population: tuple[str, ...] = ()  # scores with a rule `of population`, so that their intervals are for the population


@dataclass(frozen=True)
class SuiteResult(SuiteFacts):
    """The results of a suite under one variant."""

    rollouts: Mapping[str, int]  # [status](metrics.md#status) -> number of rollouts
    retried: int  # number of rollouts with more than one attempt
    retried_scores: Mapping[str, RetriedMeans]  # score -> means of retried and other rollouts; empty if none was retried
    scores: Mapping[str, Means]  # score -> its two means
    passes: Passes | None  # pass rates; null if the main score has no threshold or no rollout was measured
    efficiency: Efficiency  # tokens, time and costs per rollout
    answers: Mapping[str, AnswersSummary]  # score -> summary of its answers; empty if no score is about answers
    score_errors: Mapping[str, int]  # score -> number of rollouts on which its scorer failed
    scorer_failures: tuple[ScorerFailure, ...]  # causes of missing scores, at most ten, the most frequent first
    drafts: DraftsSummary | None  # drafts of an agent that [judges its own work](judges.md); null for other agents
    roles: Mapping[str, RoleUse]  # [role](roles.md) (with `judge`, and `agent` for the agent) -> calls; empty if only the agent made calls
    worst: tuple[WorstScore, ...]  # at most five scenarios, the worst main score first, then by id, without those at the best value
    errors: tuple[UnmeasuredRollout, ...]  # rollouts that are not evaluable, at most ten, by id
    scenarios: tuple[ScenarioScores, ...]  # scenarios that ran, the worst main score first, then by id, those without a score last
    triage: Triage | None  # mistakes of the agent; null if no rollout was measured
    tasks: TasksSummary | None  # results of tasks; null if no task was verified
    sandboxes: tuple[str, ...]  # [kinds of sandboxes](sandboxes.md#without-docker) that ran programs of models, tasks excluded
    without_calls: int = 0  # rollouts with the status `ok` or `limit` without an LLM call

    @property
    def trials(self) -> int:
        """The trials of each scenario, rounded up if their number differs. 0 if no scenario ran."""
        return math.ceil(sum(self.rollouts.values()) / len(self.scenarios)) if self.scenarios else 0

    @property
    def main_mean(self) -> Mean | None:
        """The mean of the main score over all measured rollouts. None if there are none."""
        return self.scores[self.main_score].mean

    @property
    def population(self) -> tuple[str, ...]:
        """The scores and pass rates whose intervals are for the population."""
        scores = [score for score, means in self.scores.items() if means.mean and means.mean.of == POPULATION]
        passes = ((False, self.passes.pass_at), (True, self.passes.pass_all)) if self.passes else ()
        return *scores, *(PassRate(every, rate.k).name for every, rates in passes for rate in rates if rate.of == POPULATION)

    @property
    def is_unknown(self) -> bool:
        """Whether the suite has thresholds but no measured rollout, so that the thresholds could not be checked."""
        return bool(self.thresholds) and not any(self.rollouts[status] for status in MEASURED)


@dataclass(frozen=True)
class Cache:
    """How a session prepared the [prefix cache](ab.md#the-state-of-the-prefix-cache)."""

    policy: str  # state when measuring begins: `cold`, `primed` or `carry`
    blocks: tuple[CacheBlock, ...] = ()  # blocks of rollouts of the last session, in order; empty for `carry` without arms
    salted: Mapping[str, str] = field(default_factory=dict)  # arm (empty without arms) with salted prompts -> why the cache was not reset


@dataclass(frozen=True)
class ArmFacts:
    """The state of the arms (settings under comparison) at the end of a session."""

    failure: str = ""  # why no arm could run any more; empty if nothing failed
    failures: Mapping[str, str] = field(default_factory=dict)  # arm that failed to start, was lost, or lost workers -> why
    load_s: Mapping[str, float] = field(default_factory=dict)  # arm -> seconds until it had started
    in_sequence: bool = False  # whether the arms ran one after the other instead of interleaved


@dataclass(frozen=True, kw_only=True)
class ArmResult(Arm):
    """The results of one arm (a setting under comparison), with all suites together."""

    model: str | None  # name of the model, as `backend.served_model`
    load_s: float | None  # seconds until its backend answered; null if it did not, and for arms without their own backend
    failure: str  # why it failed to start, was lost, or lost workers; empty if it did not fail
    blocks: int  # number of its blocks in the last session
    rollouts: Mapping[str, int]  # [status](metrics.md#status) -> number of rollouts
    calls: int  # number of LLM calls, failed ones included
    failed_calls: int  # number of failed LLM calls
    busy_s: float  # seconds in which at least one of its rollouts ran
    # `rollouts_per_hour` and all other metrics of a session in the [table](metrics.md#serving-metrics), over `busy_s`; null if unknown
    metrics: Mapping[str, float | None] = field(metadata=OPEN)
    goodput: GoodputSummary | None  # goodput over `busy_s`; null without `--agentbench-slo`
    prefix_cache: CacheHits  # prefix cache hits by the counters of the server, over all blocks of the arm


@dataclass(frozen=True, kw_only=True)
class MetricCompared(Decision):
    """The comparison of a metric between two arms."""

    suite: str  # suite, or `suite-variant`
    metric: str  # score, or percentile of a latency such as `ttft.p50`
    base_arm: str  # arm that `new_arm` is compared with
    new_arm: str  # arm that is compared
    base: float | None  # value of `base_arm`: mean score, or milliseconds; null if unknown
    new: float | None  # value of `new_arm`: mean score, or milliseconds; null if unknown
    finding: str  # result of the comparison: `better`, `worse`, `faster`, `slower`, `no difference shown` or `inconclusive`


@dataclass(frozen=True)
class ArmsCompared:
    """The comparison of [arms](ab.md), paired by scenario."""

    arms: tuple[ArmResult, ...]  # results of the arms; the others are compared with the first
    order: str  # order of the rollouts: `interleaved` or `in sequence`
    comparisons: tuple[MetricCompared, ...]  # comparisons of metrics
    warnings: tuple[str, ...]  # sentences on unequal conditions of the arms


@dataclass(frozen=True)
class Changed:
    """One difference between the setups of two runs."""

    part: str  # part of the [identity](compare.md#the-identity-of-a-run), such as `model`
    path: str  # path of the value in that part, such as `name`
    old: Any  # earlier value; null if it is unset or unknown
    new: Any  # later value; null if it is unset or unknown


@dataclass(frozen=True)
class BaselineRun:
    """The baseline run of a suite."""

    run: str  # `id` of the run
    commit: str | None  # commit of the repository; null if unknown
    finished_at: str  # end of the run, ISO 8601
    setup: tuple[Changed, ...] | None = None  # differences between its setup and that of this run; null if either setup is unknown


@dataclass(frozen=True, kw_only=True)
class RuleResult(Decision):
    """A gate rule with its verdict."""

    suite: str  # suite, or `suite-variant`
    rule: str  # text of the rule
    kind: str  # kind of the metric: `score`, `passes`, `latency`, `rate`, `share` or `goodput`
    vs_baseline: bool  # whether the rule compares with the baseline
    width: float | None = None  # greatest possible difference between two values of a score; null if unknown, and for other metrics
    notes: tuple[str, ...] = ()  # other differences from the baseline
    suspects: tuple[Suspect, ...] = ()  # scenarios with lower scores, the [significant](gates.md#which-scenarios-got-worse) ones first


@dataclass(frozen=True)
class InterimLook:
    """An interim look: the verdict of the gate after a complete round of trials."""

    round: int  # number of the last complete round
    verdict: str  # verdict of the rules that interim looks check: `PASS`, `FAIL` or `INCONCLUSIVE`
    stands: bool  # whether more rounds would not change the verdict
    rules: tuple[RuleResult, ...]  # verdicts of these rules, with the `confidence` of the look


@dataclass(frozen=True)
class RoundsResult:
    """Rounds of trials that were [added until the verdict of the gate stood](gates.md#trials-until-the-verdict-stands)."""

    most: int  # maximum number of rounds
    ran: int  # complete rounds up to the last interim look; 0 if the run was interrupted before the first look
    stands: bool  # whether the rounds ended because more trials would not change the verdict
    saved: int  # rollouts of the remaining rounds, which did not have to run
    looks: tuple[InterimLook, ...]  # interim looks, one after each round from the second on


@dataclass(frozen=True)
class EarlierRuns:
    """Earlier runs of [the same setup](gates.md#run-until-it-is-green) in the same reports directory."""

    runs: int  # number of earlier runs with a verdict; 0 if the setup is unknown, for example without git
    not_passed: tuple[str, ...]  # `id` of those whose verdict was not `PASS`, the oldest first


@dataclass(frozen=True)
class GateResult:
    """The verdict of the gate, with those of its rules."""

    verdict: str  # verdict of all rules together: `PASS`, `FAIL` or `INCONCLUSIVE`
    decides: bool  # whether the gate influences the exit status: `--agentbench-verdict=gate`
    tests_below: int  # number of tests below a threshold that did not fail the session
    # suites with scores that were compared with a baseline, so that the gate decides instead of the thresholds of these scores
    compared: tuple[str, ...]
    baselines: Mapping[str, BaselineRun]  # suite, or `suite-variant`, -> its baseline run
    rules: tuple[RuleResult, ...]  # verdicts of the rules: those of `suite.yaml`, the command line and thresholds, in this order
    unmeasured: tuple[str, ...]  # suites of which too many rollouts were lost or could not be measured

    def decides_about(self, group: str, score: str) -> bool:
        """Returns whether the gate compares a score of a suite with a baseline, and so decides in place of the threshold of a scenario."""
        rules = (each for each in self.rules if each.suite == group and each.vs_baseline and each.kind == "score")
        return group in self.compared and any(each.rule.split()[0] == f"{score}.mean" for each in rules)
