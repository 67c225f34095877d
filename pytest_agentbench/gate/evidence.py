"""What a gate knows of a run: scores, derived timings and hashes of each rollout, and a few facts about all of them; and reasons why
the numbers that a rule is about mean nothing, or do not mean the same in a run and its baseline.
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
from pytest_agentbench.metrics.stopwatch import SATURATED, title
from pytest_agentbench.metrics.terms import GOOD, UNKNOWN, verdicts_of
from pytest_agentbench.records import Json, LLMCall, Rollout, Scale, scale_in
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
    """One LLM call; a failed one has no times."""

    ms: Mapping[str, float]  # metric of the registry -> milliseconds, those that it has; of `itl` its longest gap
    output_tokens: int
    failed: bool


@dataclass(frozen=True)
class Trial:
    """One rollout, as far as a gate is interested in it."""

    suite: str
    group: str  # the suite, or suite-variant
    scenario: str
    trial: int
    status: str
    content: Json = field(default_factory=dict)  # hashes of what it depends on: scenario, agent, backend, and of each score
    cluster: str | None = None
    attempts: int = 1
    scores: Mapping[str, float] = field(default_factory=dict)
    unscored: tuple[str, ...] = ()  # scores that are missing because their scorer failed
    began_at: float = 0.0  # seconds since 1970, of the last attempt: latencies are compared in the order of time
    duration_ms: float = 0.0  # of the last attempt
    calls: tuple[CallTimes, ...] = ()  # of all attempts


@dataclass(frozen=True)
class RunFacts:
    """What is known of a run as a whole."""

    run: str  # its id
    planned: int = 0  # rollouts
    lost: int = 0  # of them, those that never ended
    scenarios: Mapping[str, int] = field(default_factory=dict)  # group -> how many its data set has
    stopwatch: str | None = None  # its verdict on the timings
    unusable: tuple[str, ...] = ()  # what it says is not usable: `ttft.p99`, or the objective `goodput.itl`
    cache: str = "carry"  # how the prefix cache was made ready
    rates: Mapping[str, float | None] = field(default_factory=dict)  # metric of a session -> its value
    efficiency: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)  # group -> metric of a suite -> its value
    slo: Mapping[str, float] = field(default_factory=dict)  # objective -> milliseconds
    commit: str | None = None  # of the repository
    finished_at: str = ""  # ISO 8601
    quarantined: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # group -> scenarios that rules leave out
    unsupported: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # group -> tasks that were skipped for what they ask for
    most_rounds: int = 0  # of trials, where they were added until the verdict stood; 0: their number was fixed
    rounds: int = 0  # of them, those after which the rules were last looked at
    scales: Mapping[str, Mapping[str, Scale]] = field(default_factory=dict)  # group -> score -> what its scorer declares

    @property
    def prefix_cache_hit_ratio(self) -> float | None:
        """None where nobody knows."""
        return self.rates.get("prefix_cache_hit_ratio")

    def number(self, metric: str, group: str) -> float | None:
        """What the run, or a group of it, has one number of; None where nobody knows."""
        return self.rates.get(metric) if metric in registry.rates() else self.efficiency.get(group, {}).get(metric)

    @classmethod
    def of(cls, run: Run) -> RunFacts:
        """What a gate wants to know of a run."""
        return cls(
            run=run.id,
            planned=run.plan.rollouts,
            lost=run.plan.not_run,
            scenarios={name: suite.dataset.size for name, suite in run.suites.items()},
            scales={name: suite.scales for name, suite in run.suites.items()},
            stopwatch=run.stopwatch.verdict,
            unusable=run.stopwatch.unusable,
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
        )


@dataclass(frozen=True)
class Evidence:
    """A run, as a gate sees it: measured just now, read from a run directory, or from a baseline file."""

    facts: RunFacts
    groups: Mapping[str, Sequence[Trial]]  # suite, or suite-variant -> its rollouts

    @classmethod
    def of(cls, facts: RunFacts, trials: Iterable[Trial]) -> Evidence:
        groups: dict[str, list[Trial]] = {}
        for trial in trials:
            groups.setdefault(trial.group, []).append(trial)
        return cls(facts, groups)

    def up_to(self, rounds: int) -> Evidence:
        """This without the trials after so many rounds."""
        kept = {group: [trial for trial in trials if trial.trial <= rounds] for group, trials in self.groups.items()}
        return Evidence(self.facts, kept)

    def hashes(self, group: str, part: str) -> set[str]:
        """The different hashes of an agent or a backend that the rollouts of a group have; known ones only."""
        return {hash for trial in self.groups.get(group, ()) if (hash := trial.content.get(part))}

    def scale(self, group: str, score: str) -> Scale:
        """Returns what the scorer of a group's score declares."""
        return scale_in(self.facts.scales.get(group, {}), score)

    def scored_by(self, group: str, score: str) -> set[str]:
        """The different hashes of how a score of a group's rollouts came about; known ones only."""
        scorers = (trial.content.get("scorers") for trial in self.groups.get(group, ()))
        return {hash for each in scorers if each and (hash := each.get(score))}

    def without(self, group: str, scenarios: Collection[str]) -> Evidence:
        """This without some scenarios of a group, as if its data set did not have them."""
        kept = [trial for trial in self.groups.get(group, ()) if trial.scenario not in scenarios]
        size = max(0, self.facts.scenarios.get(group, 0) - len(scenarios))
        return Evidence(replace(self.facts, scenarios={**self.facts.scenarios, group: size}), {**self.groups, group: kept})


def trial_of(rollout: Rollout) -> Trial:
    """A rollout without its texts."""
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
    """The derived timings of a call."""
    functions = {name: metric.of_call for name, metric in registry.objectives().items()}
    known = {name: value / 1e6 for name, of_call in functions.items() if of_call and (value := of_call(call)) is not None}
    return CallTimes(known, output_tokens=timings.output_tokens(call), failed=call.error_kind is not None)


SHORTEST_MS = 0.001  # a latency below a microsecond counts as one: its logarithm has to exist
LOST = ("infra_error", "cancelled")  # statuses of rollouts that would have had a score


def samples(trials: Iterable[Trial], score: str, scale: Scale) -> dict[str, ScenarioSample]:
    """Scenario -> what was measured of it. An agent's error counts as the worst value of the scale, and is left out if there is none."""

    def measured(trial: Trial) -> float | None:
        return scale.worst if trial.status == "agent_error" else trial.scores.get(score)

    return _samples((trial, measured(trial)) for trial in trials)


def score_limits(scale: Scale, *measured: Mapping[str, ScenarioSample]) -> Limits | None:
    """Returns the least and the greatest value of a scale; None unless both are known and hold for what was measured."""
    values = (value for by_scenario in measured for each in by_scenario.values() for value in each.scores)
    return scale.limits if all(map(scale.contains, values)) else None


def passes(trials: Iterable[Trial], pass_threshold: PassThreshold) -> dict[str, ScenarioSample]:
    """Scenario -> 1 of each trial that passed, else 0; one in which the agent raised did not pass."""

    def measured(trial: Trial) -> float | None:
        if trial.status == "agent_error":
            return 0.0
        value = trial.scores.get(pass_threshold.score)
        return None if value is None else float(pass_threshold.reached(value))

    return _samples((trial, measured(trial)) for trial in trials)


def _samples(trials: Iterable[tuple[Trial, float | None]]) -> dict[str, ScenarioSample]:
    """Returns scenario -> the values of its trials; None of a trial that has none."""
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
    """Milliseconds of measured rollouts, or of their calls. Imported rollouts may have taken no time: it is unknown."""
    measured = ((trial, _milliseconds(trial, metric)) for trial in trials)
    return [
        RolloutLatencies(each.scenario, each.trial, each.began_at, tuple(max(value, SHORTEST_MS) for value in ms)) for each, ms in measured
    ]


def latency_percentile(trials: Iterable[Trial], metric: str, q: int) -> float | None:
    """The q-th percentile (0 to 100) in milliseconds, as it was measured: it may be 0. None where nothing was measured."""
    return percentile([value for trial in trials for value in _milliseconds(trial, metric)], q)


def compare_with_limit(trials: Sequence[Trial], metric: str, q: int, limit: float, confidence: float = 0.95) -> Decision:
    """Is the q-th percentile (0 to 100) at most `limit` milliseconds? What is below SHORTEST_MS is told as it was measured."""
    decision, measured = latency_limit(latencies(trials, metric), q, limit, confidence=confidence), latency_percentile(trials, metric, q)
    if decision.estimate is None or decision.low is None or measured is None or measured >= SHORTEST_MS:
        return decision
    return replace(decision, estimate=measured, low=min(decision.low, measured))


def _milliseconds(trial: Trial, metric: str) -> list[float]:
    if metric == "rollout":
        return [trial.duration_ms] if trial.status in ("ok", "limit") and trial.duration_ms else []
    return [value for call in trial.calls if (value := call.ms.get(metric)) is not None]


def good_shares(trials: Iterable[Trial], slo: Mapping[str, float]) -> dict[str, ScenarioSample]:
    """Returns scenario -> of each trial the share of calls that met all objectives (milliseconds), as far as that is known."""
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


FAILED_CALLS = 0.02  # share of LLM calls that may have failed where latencies are judged: failed ones have none

TIMED = ("latency", "goodput")  # kinds that a saturated client spoils; of rates, those that are `timed`


def incomparable(suite_rule: SuiteRule, run: Evidence, base: Evidence | None) -> str:
    """Why the numbers that a rule is about mean nothing, or not the same in both runs; empty where they do."""
    group, rule = suite_rule.group, suite_rule.rule
    if is_timed(rule) and (why := _badly_timed(rule, run, base if rule.versus else None)):
        return why
    if rule.kind == "latency" and rule.metric != "rollout":
        calls = [call for trial in run.groups.get(group, ()) for call in trial.calls]
        failed = sum(call.failed for call in calls)
        if failed > FAILED_CALLS * len(calls):
            return f"{failed} of {len(calls)} LLM calls failed, and failed calls have no latency"
    if _is_about_goodput(rule) and (why := _other_objectives(run, base if rule.versus else None)):
        return why
    if score := suite_rule.score:
        if missing := unscored(suite_rule, run):
            return f"{missing} of its scores {'are' if missing > 1 else 'is'} missing: the scorer failed"
        if rule.versus and base:
            return scoring_difference(group, score, run, base)
    return ""


def scoring_difference(group: str, score: str, run: Evidence, base: Evidence) -> str:
    """Returns why values of a score of two runs do not mean the same; empty if they do, as far as it is known."""
    new_scale, old_scale = (each.scale(group, score) for each in (run, base))
    if not new_scale.is_comparable(old_scale):
        return f"the baseline's {score} is on another scale ({old_scale.text}; now {new_scale.text})"
    scorings = run.scored_by(group, score), base.scored_by(group, score)
    if all(scorings) and scorings[0] != scorings[1]:
        new, old = (", ".join(sorted(each)) for each in scorings)
        return f"the baseline was scored in another way ({score} {old}, now {new})"
    return ""


def uncounted(score: str, scale: Scale, trials: Sequence[Trial], allowed: float = 0.0) -> str:
    """Returns why the mean of a score says too little, since its agent errors count as no value; empty if it does not.

    `allowed` is the share of rollouts that may end as agent_error.
    """
    if scale.worst is not None:
        return ""
    errors = sum(trial.status == "agent_error" for trial in trials)
    if errors <= allowed * len(trials):
        return ""
    return (
        f"{errors} of {len(trials)} rollouts ended as agent_error, more than {allowed * 100:g} %, and {score} has no worst value "
        "for them to count as"
    )


def unscored(suite_rule: SuiteRule, run: Evidence) -> int:
    """How many of the scores that a rule looks at are missing because their scorer failed."""
    return sum(suite_rule.score in trial.unscored for trial in run.groups.get(suite_rule.group, ())) if suite_rule.score else 0


def is_timed(rule: Rule) -> bool:
    return rule.kind in TIMED or (rule.kind == "rate" and single()[rule.metric].timed)


def _badly_timed(rule: Rule, run: Evidence, base: Evidence | None) -> str:
    for evidence in filter(None, (run, base)):
        if evidence.facts.stopwatch == SATURATED:
            return f"the timings of {evidence.facts.run} are of a saturated client, not of the backend"
        if unusable := [title(name) for name in _needs(rule, evidence) if name in evidence.facts.unusable]:
            return f"{', '.join(unusable)} of {evidence.facts.run} is not usable: chunks arrived faster than the client's machine read them"
    if base and (before := base.facts.cache) != (now := run.facts.cache):
        return f"the prefix cache was {before} in the baseline, and is {now} now (--agentbench-cache)"
    return ""


def _other_objectives(run: Evidence, base: Evidence | None) -> str:
    """Returns why good calls of a run cannot be counted, or mean something else in its baseline; empty if neither is the case."""
    if not run.facts.slo:
        return "nobody said what a good call is: --agentbench-slo does"
    if base is None or base.facts.slo == run.facts.slo:
        return ""
    now, then = (" ".join(f"{name}={limit:g}ms" for name, limit in each.facts.slo.items()) or "none" for each in (run, base))
    return f"the objectives of good calls are not the baseline's ({then}; now {now})"


def _is_about_goodput(rule: Rule) -> bool:
    """Returns whether a rule counts the calls that meet objectives."""
    return rule.kind == "goodput" or rule.metric == "goodput_per_s"


def _needs(rule: Rule, evidence: Evidence) -> list[str]:
    """What a rule looks at, in the stopwatch's words; rates and durations need no stamp of an event."""
    if _is_about_goodput(rule):
        return [f"goodput.{objective}" for objective in evidence.facts.slo]
    return [f"{rule.metric}.{rule.statistic}"] if rule.kind == "latency" else []
