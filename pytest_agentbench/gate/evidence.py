"""The data of a run that a gate needs: scores, derived timings and hashes of each rollout, and a few facts about the whole run.

It also finds the reasons why the numbers of a rule are meaningless, or cannot be compared between a run and its baseline.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pytest_agentbench.gate.rules import Rule, SuiteRule
from pytest_agentbench.metrics import registry, timings
from pytest_agentbench.metrics.performance import objectives_of
from pytest_agentbench.metrics.registry import single
from pytest_agentbench.metrics.stopwatch import LIGHTER_LOAD, READ_TOO_LATE, SATURATED, title
from pytest_agentbench.metrics.terms import GOOD, UNKNOWN, verdicts_of
from pytest_agentbench.records import Json, LLMCall, Rollout, Scale, scale_in
from pytest_agentbench.runs.nodes import clock_share, connect_times
from pytest_agentbench.runs.provenance import RunIdentity
from pytest_agentbench.stats.decisions import Decision
from pytest_agentbench.stats.intervals import Limits
from pytest_agentbench.stats.latency import RolloutLatencies, latency_limit
from pytest_agentbench.stats.paired import ScenarioSample
from pytest_agentbench.stats.pass_rates import PassThreshold
from pytest_agentbench.stats.quantiles import percentile

if TYPE_CHECKING:
    from pytest_agentbench.runs.run_file import Run
    from pytest_agentbench.stats.series import Counts


@dataclass(frozen=True)
class CallTimes:
    """The timings of one LLM call. A failed call has none."""

    ms: Mapping[str, float]  # metric of the registry -> milliseconds, if known; for `itl` the longest gap
    output_tokens: int
    failed: bool


@dataclass(frozen=True)
class Trial:
    """A rollout as gates see it: status, scores, timings and hashes, without its texts."""

    suite: str
    group: str  # suite, or `suite-variant`
    scenario: str
    trial: int
    status: str
    content: Json = field(default_factory=dict)  # hashes of the scenario, the agent, the backend and each scorer
    cluster: str | None = None
    attempts: int = 1
    scores: Mapping[str, float] = field(default_factory=dict)
    unscored: tuple[str, ...] = ()  # scores that are missing because their scorer failed
    began_at: float = 0.0  # start of the last attempt, seconds since 1970; latencies are compared in the order of time
    duration_ms: float = 0.0  # duration of the last attempt, milliseconds
    calls: tuple[CallTimes, ...] = ()  # calls of all attempts


@dataclass(frozen=True)
class RunFacts:
    """Facts about a whole run that gates use, besides its rollouts."""

    run: str  # run id
    planned: int = 0  # number of planned rollouts
    lost: int = 0  # number of planned rollouts that never ended
    scenarios: Mapping[str, int] = field(default_factory=dict)  # group -> number of scenarios in its data set
    stopwatch: str | None = None  # verdict on the timing quality
    unusable: tuple[str, ...] = ()  # timings that are not usable: `ttft.p99`, or the objective `goodput.itl`
    recorded: bool = False  # whether answers came from a recording, so that nothing new was measured
    cache: str = "carry"  # policy for the prefix cache
    rates: Mapping[str, float | None] = field(default_factory=dict)  # session metric -> value
    efficiency: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)  # group -> suite metric -> value
    slo: Mapping[str, float] = field(default_factory=dict)  # objective -> milliseconds
    commit: str | None = None  # commit of the repository
    finished_at: str = ""  # ISO 8601
    quarantined: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # group -> scenarios that rules leave out
    unsupported: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # group -> tasks skipped for unsupported features
    most_rounds: int = 0  # limit on trial rounds if rounds are added until the verdict is decided; 0: the number of trials was fixed
    rounds: int = 0  # number of rounds after which the rules were last evaluated
    scales: Mapping[str, Mapping[str, Scale]] = field(default_factory=dict)  # group -> score -> scale that its scorer declares
    clock_share: float = 0.0  # uncertainty of the clocks of nodes, as a share of the time over which rates are taken
    connect_ms: Mapping[str, float] = field(default_factory=dict)  # node -> time to connect to the backend; empty if nodes are alike
    identity: RunIdentity | None = None  # setup of the run; None if the run was imported, and in baseline files of earlier versions

    @property
    def prefix_cache_hit_ratio(self) -> float | None:
        """The prefix cache hit ratio of the session, or None if unknown."""
        return self.rates.get("prefix_cache_hit_ratio")

    def number(self, metric: str, group: str) -> float | None:
        """Returns the value of a metric that has one value per session or per group, or None if unknown."""
        return self.rates.get(metric) if metric in registry.rates() else self.efficiency.get(group, {}).get(metric)

    @classmethod
    def of(cls, run: Run) -> RunFacts:
        """Collects the facts from run.json."""
        return cls(
            run=run.id,
            planned=run.plan.rollouts,
            lost=run.plan.not_run,
            scenarios={name: suite.dataset.size for name, suite in run.suites.items()},
            scales={name: suite.scales for name, suite in run.suites.items()},
            stopwatch=run.stopwatch.verdict,
            unusable=run.stopwatch.unusable,
            recorded=run.backend.is_recorded,
            cache=run.settings.cache,
            rates={name: run.performance.number(name) for name in registry.rates()},
            efficiency={name: suite.efficiency.metrics for name, suite in run.suites.items()},
            slo=run.settings.slo,
            commit=run.environment.git.commit if run.environment.git else None,
            finished_at=run.finished_at,
            quarantined={name: ids for name, suite in run.suites.items() if (ids := tuple(each.scenario for each in suite.quarantined))},
            unsupported={name: tuple(suite.unsupported) for name, suite in run.suites.items() if suite.unsupported},
            most_rounds=run.rounds.most if run.rounds else 0,
            rounds=run.rounds.ran if run.rounds else 0,
            clock_share=clock_share(run.nodes, run.performance.span_s),
            connect_ms=connect_times(run.nodes),
            identity=run.identity,
        )


@dataclass(frozen=True)
class Evidence:
    """The data of a run on which a gate bases its verdicts.

    It comes from the current session, a run directory or a baseline file.
    """

    facts: RunFacts
    groups: Mapping[str, Sequence[Trial]]  # suite, or suite-variant -> its rollouts

    @classmethod
    def of(cls, facts: RunFacts, trials: Iterable[Trial]) -> Evidence:
        groups: dict[str, list[Trial]] = {}
        for trial in trials:
            groups.setdefault(trial.group, []).append(trial)
        return cls(facts, groups)

    def up_to(self, rounds: int) -> Evidence:
        """Returns a copy with only the first trials of each scenario, as many as `rounds`."""
        kept = {group: [trial for trial in trials if trial.trial <= rounds] for group, trials in self.groups.items()}
        return Evidence(self.facts, kept)

    def hashes(self, group: str, part: str) -> set[str]:
        """Returns the distinct known hashes of one part of the setup, such as `agent` or `backend`, in the rollouts of a group."""
        return {hash for trial in self.groups.get(group, ()) if (hash := trial.content.get(part))}

    def scale(self, group: str, score: str) -> Scale:
        """Returns the scale that the scorer of a group's score declares."""
        return scale_in(self.facts.scales.get(group, {}), score)

    def scored_by(self, group: str, score: str) -> set[str]:
        """Returns the distinct known hashes of the scorer of a score in the rollouts of a group."""
        scorers = (trial.content.get("scorers") for trial in self.groups.get(group, ()))
        return {hash for each in scorers if each and (hash := each.get(score))}

    def without(self, group: str, scenarios: Collection[str]) -> Evidence:
        """Returns a copy without some scenarios of a group, as if its data set did not contain them."""
        kept = [trial for trial in self.groups.get(group, ()) if trial.scenario not in scenarios]
        size = max(0, self.facts.scenarios.get(group, 0) - len(scenarios))
        return Evidence(replace(self.facts, scenarios={**self.facts.scenarios, group: size}), {**self.groups, group: kept})


def trial_of(rollout: Rollout) -> Trial:
    """Returns the data of a rollout that gates use, without its texts."""
    return Trial(
        suite=rollout.suite,
        group=rollout.key.group,
        scenario=rollout.scenario,
        trial=rollout.trial,
        status=rollout.status,
        content=rollout.content,
        cluster=rollout.cluster,
        attempts=rollout.attempt,
        scores={name: float(score) for name, score in rollout.scores.items()},
        unscored=tuple(rollout.score_errors),
        began_at=rollout.started_at,
        duration_ms=rollout.duration_s * 1e3,
        calls=tuple(map(call_times, rollout.all_calls)),
    )


def call_times(call: LLMCall) -> CallTimes:
    """Returns the latencies of an LLM call, computed from its timestamps."""
    functions = {name: metric.of_call for name, metric in registry.objectives().items()}
    known = {name: value / 1e6 for name, of_call in functions.items() if of_call and (value := of_call(call)) is not None}
    return CallTimes(known, output_tokens=timings.output_tokens(call), failed=call.error_kind is not None)


SHORTEST_MS = 0.001  # milliseconds; shorter latencies count as this long, because latencies are compared by logarithms
LOST = ("infra_error", "cancelled")  # statuses of rollouts without a measurement


def samples(trials: Iterable[Trial], score: str, scale: Scale) -> dict[str, ScenarioSample]:
    """Returns scenario -> its measured scores. An agent error counts as the scale's worst value, and is left out if the scale has none."""

    def measured(trial: Trial) -> float | None:
        return scale.worst if trial.status == "agent_error" else trial.scores.get(score)

    return _samples((trial, measured(trial)) for trial in trials)


def score_limits(scale: Scale, *measured: Mapping[str, ScenarioSample]) -> Limits | None:
    """Returns the least and the greatest value of a scale, or None if one is unknown or a measured value lies outside."""
    values = (value for by_scenario in measured for each in by_scenario.values() for value in each.scores)
    return scale.limits if all(map(scale.contains, values)) else None


def passes(trials: Iterable[Trial], pass_threshold: PassThreshold) -> dict[str, ScenarioSample]:
    """Returns scenario -> 1 for each trial that passed and 0 for each that did not. A trial that ended as agent_error did not pass."""

    def measured(trial: Trial) -> float | None:
        if trial.status == "agent_error":
            return 0.0
        value = trial.scores.get(pass_threshold.score)
        return None if value is None else float(pass_threshold.reached(value))

    return _samples((trial, measured(trial)) for trial in trials)


def _samples(trials: Iterable[tuple[Trial, float | None]]) -> dict[str, ScenarioSample]:
    """Returns scenario -> the values of its trials. A trial whose value is None has no measurement."""
    values: dict[str, list[float]] = {}
    known: dict[str, Trial] = {}
    lost: Counter[str] = Counter()
    for trial, measured in trials:
        known[trial.scenario] = trial
        values.setdefault(trial.scenario, []).extend(() if measured is None else (measured,))
        lost[trial.scenario] += trial.status in LOST
    return {
        name: ScenarioSample(known[name].content.get("scenario", ""), tuple(scores), known[name].cluster, lost[name])
        for name, scores in values.items()
    }


def latencies(trials: Iterable[Trial], metric: str) -> list[RolloutLatencies]:
    """Returns, for each rollout, its latencies in one metric in milliseconds: its own duration, or one latency for each call.

    A rollout without a known latency has none. A duration of 0, as in imported rollouts, is unknown.
    """
    measured = ((trial, _milliseconds(trial, metric)) for trial in trials)
    return [
        RolloutLatencies(each.scenario, each.trial, each.began_at, tuple(max(value, SHORTEST_MS) for value in ms)) for each, ms in measured
    ]


def latency_percentile(trials: Iterable[Trial], metric: str, q: int) -> float | None:
    """Returns the q-th percentile (0 to 100) of the measured milliseconds, which may be 0, or None if nothing was measured."""
    return percentile([value for trial in trials for value in _milliseconds(trial, metric)], q)


def compare_with_limit(trials: Sequence[Trial], metric: str, q: int, limit: float, confidence: float = 0.95) -> Decision:
    """Decides whether the q-th percentile (0 to 100) is at most `limit` milliseconds.

    Latencies below SHORTEST_MS count as SHORTEST_MS, but an estimate below it is reported as it was measured.
    """
    decision, measured = latency_limit(latencies(trials, metric), q, limit, confidence=confidence), latency_percentile(trials, metric, q)
    if decision.estimate is None or decision.low is None or measured is None or measured >= SHORTEST_MS:
        return decision
    return replace(decision, estimate=measured, low=min(decision.low, measured))


def _milliseconds(trial: Trial, metric: str) -> list[float]:
    if metric == "rollout":
        return [trial.duration_ms] if trial.status in ("ok", "limit") and trial.duration_ms else []
    return [value for call in trial.calls if (value := call.ms.get(metric)) is not None]


def good_shares(trials: Iterable[Trial], slo: Mapping[str, float]) -> dict[str, ScenarioSample]:
    """Returns scenario -> for each trial, the share of calls that met all objectives (ms). Calls that lack a timing do not count."""
    import numpy as np

    every = [*trials]
    if not every:
        return {}
    calls, objectives = [call for trial in every for call in trial.calls], objectives_of(slo)
    columns = {each.column: np.array([call.ms.get(each.name, np.nan) for call in calls]) for each in objectives}
    verdicts = verdicts_of(columns.__getitem__, np.array([call.failed for call in calls], bool), objectives)
    of_trials = np.split(verdicts, np.cumsum([len(trial.calls) for trial in every])[:-1])
    return _samples((trial, _share(own[own != UNKNOWN])) for trial, own in zip(every, of_trials, strict=True))


def _share(verdicts: Counts) -> float | None:
    return float((verdicts == GOOD).mean()) if len(verdicts) else None


FAILED_CALLS = 0.02  # share of LLM calls that may fail before a latency rule is INCONCLUSIVE, because failed calls have no latency

NEW_BASELINE = "promote a new baseline"  # advice if the scores of a baseline are not comparable

MAX_CLOCK_SHARE = 0.01  # uncertainty of the clocks of nodes above which a rule on a rate is INCONCLUSIVE, as a share of the time

TIMED = ("latency", "goodput")  # kinds of rules that a saturated client makes unreliable, besides rates that are `timed`


def incomparable(suite_rule: SuiteRule, run: Evidence, base: Evidence | None) -> str:
    """Returns why the numbers of a rule are meaningless or not comparable between both runs, or an empty string."""
    group, rule = suite_rule.group, suite_rule.rule
    if is_timed(rule) and (why := _badly_timed(rule, run, base if rule.versus else None)):
        return why
    if rule.kind == "latency" and rule.metric != "rollout":
        calls = [call for trial in run.groups.get(group, ()) for call in trial.calls]
        failed = sum(call.failed for call in calls)
        if failed > FAILED_CALLS * len(calls):
            return f"{failed} of {len(calls)} LLM calls failed, more than {FAILED_CALLS * 100:g} %, and failed calls have no latency"
    if _is_about_goodput(rule) and (why := _other_objectives(run, base if rule.versus else None)):
        return why
    if score := suite_rule.score:
        if missing := unscored(suite_rule, run):
            return missing_scores(missing, score)
        if rule.versus and base:
            return scoring_difference(group, score, run, base)
    return ""


def scoring_difference(group: str, score: str, run: Evidence, base: Evidence) -> str:
    """Returns how the scale or the scorer of a score differs between two runs, or an empty string if no difference is known."""
    new_scale, old_scale = (each.scale(group, score) for each in (run, base))
    if not new_scale.is_comparable(old_scale):
        return f"the scale of {score} has changed ({old_scale.text}; now {new_scale.text}); {NEW_BASELINE}"
    scorings = run.scored_by(group, score), base.scored_by(group, score)
    if all(scorings) and scorings[0] != scorings[1]:
        new, old = (", ".join(sorted(each)) for each in scorings)
        return f"the baseline's {score} is from another version of the scorer (hash {old}; now {new}); {NEW_BASELINE}"
    return ""


def uncounted(score: str, scale: Scale, trials: Sequence[Trial], allowed: float = 0.0) -> str:
    """Returns a reason if the mean of a score leaves out too many rollouts that ended as agent_error, or an empty string.

    Such a rollout counts as the worst value of the scale. If the scale has none, it is left out. `allowed` is the share of rollouts that
    may end as agent_error.
    """
    if scale.worst is not None:
        return ""
    errors = sum(trial.status == "agent_error" for trial in trials)
    if errors <= allowed * len(trials):
        return ""
    return (
        f"{errors} of {len(trials)} rollouts ended as agent_error, more than {allowed * 100:g} %, and are left out of {score} "
        "because its scorer declares no worst value (`range`)"
    )


def unscored(suite_rule: SuiteRule, run: Evidence) -> int:
    """Returns how many of the scores that a rule uses are missing because their scorer failed."""
    return sum(suite_rule.score in trial.unscored for trial in run.groups.get(suite_rule.group, ())) if suite_rule.score else 0


def missing_scores(count: int, score: str) -> str:
    """Returns a sentence about scores that are missing because their scorer failed."""
    missing = f"{count} {score} scores are" if count > 1 else f"a {score} score is"
    return f"{missing} missing because the scorer failed; correct the scorer and run `agentbench rescore`"


def is_timed(rule: Rule) -> bool:
    """Returns whether a rule depends on times that this machine, the client of the backend, measured: latencies, goodput, some rates."""
    return rule.kind in TIMED or (rule.kind == "rate" and single()[rule.metric].timed)


def _badly_timed(rule: Rule, run: Evidence, base: Evidence | None) -> str:
    for evidence in filter(None, (run, base)):
        if evidence.facts.stopwatch == SATURATED:
            return f"the client of {evidence.facts.run} was too busy to time calls (saturated); {LIGHTER_LOAD}"
        if unusable := [title(name) for name in _needs(rule, evidence) if name in evidence.facts.unusable]:
            return f"not usable in {evidence.facts.run}: {', '.join(unusable)}; {READ_TOO_LATE}"
        if rule.metric in registry.rates() and (share := evidence.facts.clock_share) > MAX_CLOCK_SHARE:
            return (
                f"the clocks of the nodes of {evidence.facts.run} are known only to {share * 100:.2g} % of the time over which rates are "
                f"taken, and {MAX_CLOCK_SHARE * 100:g} % is needed; run more rollouts"
            )
    if base and (before := base.facts.cache) != (now := run.facts.cache):
        return f"the policy for the prefix cache is {now}, but was {before} in the baseline; use --agentbench-cache={before}"
    return ""


def connect_note(connect_ms: Mapping[str, float]) -> str:
    """Returns a sentence that names the nodes and their times to connect to the backend. Empty if `connect_ms` is empty."""
    if not connect_ms:
        return ""
    times = ", ".join(f"{value:.3g} ms from {node}" for node, value in sorted(connect_ms.items(), key=lambda each: (each[1], each[0])))
    return f"nodes are at different distances from the backend, which is a part of latencies: connecting takes {times}"


def _other_objectives(run: Evidence, base: Evidence | None) -> str:
    """Returns why the goodput of a run is unknown or not comparable with the baseline's, or an empty string."""
    if not run.facts.slo:
        return "goodput needs latency objectives; set them with --agentbench-slo, for example ttft=500ms"
    if base is None or base.facts.slo == run.facts.slo:
        return ""
    now, then = (" ".join(f"{name}={limit:g}ms" for name, limit in each.facts.slo.items()) or "none" for each in (run, base))
    return f"the latency objectives are {now}, but were {then} in the baseline; use the same --agentbench-slo"


def _is_about_goodput(rule: Rule) -> bool:
    """Returns whether a rule counts the calls that meet objectives."""
    return rule.kind == "goodput" or rule.metric == "goodput_per_s"


def _needs(rule: Rule, evidence: Evidence) -> list[str]:
    """Returns the names of the timings that a rule uses, such as `ttft.p99`. Rates and durations need no timestamps of events."""
    if _is_about_goodput(rule):
        return [f"goodput.{objective}" for objective in evidence.facts.slo]
    return [f"{rule.metric}.{rule.statistic}"] if rule.kind == "latency" else []
