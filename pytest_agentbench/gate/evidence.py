"""The data of a run that a gate needs: scores, derived timings and hashes of each rollout, and a few facts about the whole run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pytest_agentbench.metrics import registry, timings
from pytest_agentbench.metrics.performance import objectives_of
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
    stopwatch_version: int = 1  # version of the way in which the tap times calls; 1 in baseline files of earlier versions
    delayed_ack_share: float = 0.0  # share of calls whose first event a client that delays acknowledgements could get later
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
            stopwatch_version=run.stopwatch.version,
            delayed_ack_share=run.stopwatch.delayed_ack_share,
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
