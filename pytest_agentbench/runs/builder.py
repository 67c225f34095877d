"""Builds a Run from its rollouts and from the facts of its session. The rollouts are read once, and one is in memory at a time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from math import fsum
from statistics import fmean
from types import MappingProxyType
from typing import TYPE_CHECKING

from pytest_agentbench.lib.config import validate
from pytest_agentbench.metrics.performance import PerformanceSettings, summarize
from pytest_agentbench.metrics.prices import Prices
from pytest_agentbench.metrics.registry import numbers
from pytest_agentbench.metrics.suite_metrics import Efficiency, drafts_of, uses
from pytest_agentbench.metrics.terms import Terms, TokenPrices
from pytest_agentbench.records import STATUSES, Json, Rollout, Scale, scale_in
from pytest_agentbench.runs.results import (
    Mean,
    Means,
    Passes,
    PassMean,
    PlannedSuite,
    QuarantineResult,
    RetriedMeans,
    ScenarioPasses,
    ScenarioScores,
    ScoredBy,
    SuiteFacts,
    SuiteResult,
)
from pytest_agentbench.runs.run_file import BackendUse, Run, SessionFacts
from pytest_agentbench.runs.tally import SuiteTally
from pytest_agentbench.stats.decisions import POPULATION, SUITE
from pytest_agentbench.stats.mean_intervals import binomial_interval
from pytest_agentbench.stats.means import Interval, scenarios_interval
from pytest_agentbench.stats.pass_rates import PassRate, PassThreshold, pass_counts
from pytest_agentbench.suites.suite import Quarantined, Suite, question, score_name

if TYPE_CHECKING:
    from pytest_agentbench.metrics.frame import Frame, Slice


MOST_K = 10  # the greatest k for which pass@k and pass^k are computed


def plan_suite(
    name: str,
    suite: Suite,
    variant: str = "default",
    thresholds: Mapping[str, float] = MappingProxyType({}),
    *,
    quarantined: Mapping[str, Mapping[str, int]] = MappingProxyType({}),
    population: Collection[str] = (),
) -> PlannedSuite:
    """Returns the plan of one suite under one variant: what is needed besides rollouts to compute its result.

    Args:
        name: The suite, or `suite-variant`.
        suite: The suite with all its variants.
        variant: Name of the variant.
        thresholds: Name of a score -> threshold in force.
        quarantined: Scenario -> number of its `tests` that ran, and of those that `passed`.
        population: Scores with a rule `of population`. Their intervals are for all scenarios of this kind, not only for the suite.
    """
    facts = _facts_of(suite, variant, thresholds, quarantined)
    questions = {scenario.id: question(scenario.messages) for scenario in suite.scenarios}
    return PlannedSuite(name, facts, questions, suite.roles, tuple(sorted(population)))


def build_suite(planned: PlannedSuite, tally: SuiteTally, part: Slice, prices: TokenPrices | None = None) -> SuiteResult:
    """Returns the result of one suite under one variant. `part` contains its rollouts, and `prices` are those of the backend."""
    facts, population = planned.facts, planned.population
    main, pass_threshold = facts.scales[facts.main_score], pass_threshold_of(facts.scorers, facts.thresholds, facts.scales)
    passes = _pass_counts(tally, pass_threshold)
    retried = facts.scorers if tally.retried else ()
    scores = {name: _score_summary(tally, name, facts.scales[name], _question(name, population)) for name in facts.scorers}
    terms = Terms(prices=prices, score=_rising_mean(main, scores[facts.main_score]), passed=sum(passed for passed, _ in passes.values()))
    return SuiteResult(
        **facts.facts(),
        rollouts={status: tally.statuses[status] for status in STATUSES},
        retried=tally.retried,
        retried_scores={name: _retried_summary(tally, name, facts.scales[name], _question(name, population)) for name in retried},
        scores=scores,
        passes=_passes(tally, pass_threshold, passes, population),
        efficiency=Efficiency(currency=prices.currency if prices else None, metrics=numbers(part.on(terms), "suite")),
        answers=tally.answers.summary(),
        score_errors=dict(tally.score_errors),
        scorer_failures=tally.scorer_failures.summary(),
        drafts=drafts_of(part),
        roles=uses(part, prices_by_endpoint(planned.roles, prices)),
        worst=tally.worst_first(planned.questions, main),
        scenarios=_scenarios(tally, facts.scorers, main),
        triage=tally.mistakes.triage(),
        tasks=tally.tasks.summary(),
        sandboxes=tuple(sorted(tally.sandboxes)),
        errors=tuple(tally.errors),
        without_calls=tally.without_calls,
    )


def _facts_of(suite: Suite, variant: str, thresholds: Mapping[str, float], quarantined: Mapping[str, Mapping[str, int]]) -> SuiteFacts:
    """Returns the facts of a suite that do not depend on its rollouts."""
    return SuiteFacts(
        dataset=suite.dataset,
        variant=variant,
        agent=suite.agent_of(variant),
        folder=str(suite.folder),
        scorers=tuple(suite.score_names),
        scored_by={score_name(name): ScoredBy(name, options) for name, options in suite.scorers.items()},
        scales=suite.every_scale,
        thresholds=dict(thresholds),
        gate=suite.gate,
        deterministic=suite.deterministic,
        quarantined=tuple(_quarantined(each, quarantined.get(each.scenario, {})) for each in suite.quarantine),
        unsupported=suite.unsupported,
    )


def prices_by_endpoint(roles: Mapping[str, Json], backend: TokenPrices | None) -> dict[str, TokenPrices]:
    """Returns URL of an endpoint -> its prices, from the settings of roles (models such as a judge).

    The key of the backend under test is an empty string.
    """
    elsewhere = (role for role in roles.values() if role.get("url") and role.get("prices"))
    own = {str(role["url"]).rstrip("/"): Prices(**role["prices"]).token_prices for role in elsewhere}
    return {**own, **({"": backend} if backend else {})}


def _quarantined(entry: Quarantined, counts: Mapping[str, int]) -> QuarantineResult:
    facts = entry.scenario, entry.owner, entry.reason, entry.expires.isoformat()
    return QuarantineResult(*facts, counts.get("tests", 0), counts.get("passed", 0))


def _question(score: str, population: Collection[str]) -> str:
    return POPULATION if score in population else SUITE


def _score_summary(tally: SuiteTally, name: str, scale: Scale, of: str) -> Means:
    """Returns two means: over all measured rollouts, where an agent error is the worst value, and over those that are `ok` or `limit`.

    If the scale has no worst value, both means are over the latter. `of` says what the intervals are for: suite or population.
    """
    evaluable = tally.scores.get(name, {})
    everything = {scenario: list(values) for scenario, values in evaluable.items()}
    for scenario, count in tally.agent_errors.items():
        if scale.worst is not None:
            everything.setdefault(scenario, []).extend([scale.worst] * count)
    return Means(*(_mean(values, tally.clusters, scale.limits, of) for values in (everything, evaluable)))


def _retried_summary(tally: SuiteTally, name: str, scale: Scale, of: str) -> RetriedMeans:
    """Returns the means of retried rollouts and of all others. If they differ, retries may have biased the result."""
    return RetriedMeans(*(_mean(tally.retried_scores[name][again], tally.clusters, scale.limits, of) for again in (True, False)))


def _mean(
    values: Mapping[str, Sequence[float]], clusters: Mapping[str, str | None], limits: tuple[float, float] | None, of: str
) -> Mean | None:
    """Returns a mean with its interval for the suite or the population (`of`), or None if there are no values."""
    return Mean(*_facts(scenarios_interval(values, clusters, limits=limits, of=of), of)) if values else None


def _facts(interval: Interval, of: str) -> tuple[float | None, float | None, float | None, str, int, int, str]:
    """Returns the arguments of `Mean` for an interval: mean, both ends, `of`, numbers of scenarios and clusters, method."""
    return interval.mean, interval.low, interval.high, of, interval.n, interval.clusters, interval.method


def pass_threshold_of(scores: Sequence[str], thresholds: Mapping[str, float], scales: Mapping[str, Scale]) -> PassThreshold | None:
    """Returns the threshold of the main score, which is the first of the scores. None if it has no threshold."""
    main = scores[0]
    return PassThreshold(main, thresholds[main], scale_in(scales, main).falling) if main in thresholds else None


def _rising_mean(scale: Scale, main: Means) -> float | None:
    """Returns the mean of the main score, for metrics such as score per second. None if there is no mean, or if lower values are better."""
    return main.mean.value if not scale.falling and main.mean else None


def _pass_counts(tally: SuiteTally, pass_threshold: PassThreshold | None) -> Mapping[str, tuple[int, int]]:
    """Returns scenario -> (trials that passed, measured trials). Empty without a threshold."""
    return pass_counts(tally.scores.get(pass_threshold.score, {}), tally.agent_errors, pass_threshold) if pass_threshold else {}


def _passes(
    tally: SuiteTally, pass_threshold: PassThreshold | None, counts: Mapping[str, tuple[int, int]], population: Collection[str]
) -> Passes | None:
    """Returns the pass rates of the suite and of its scenarios. None if there is no threshold, or if no rollout was measured."""
    if pass_threshold is None or not counts:
        return None
    most = max(trials for _, trials in counts.values())

    def rates(*, every: bool) -> tuple[PassMean, ...]:
        pass_rates = [(PassRate(every, k), k) for k in range(1, min(most, MOST_K) + 1)]
        questions = [(rate, k, _question(rate.name, population)) for rate, k in pass_rates]
        return tuple(PassMean(*_facts(rate.interval(counts, tally.clusters, of=of), of), k=k) for rate, k, of in questions)

    repeated = {scenario: each for scenario, each in counts.items() if each[1] > 1}
    failing = sorted((passed / trials, scenario) for scenario, (passed, trials) in repeated.items() if passed < trials)
    return Passes(
        score=pass_threshold.score,
        floor=pass_threshold.value,
        pass_at=rates(every=False),
        pass_all=rates(every=True),
        always=len(repeated) - len(failing),
        scenarios=tuple(_scenario_passes(scenario, *repeated[scenario]) for _, scenario in failing),
    )


def _scenarios(tally: SuiteTally, scores: Sequence[str], scale: Scale) -> tuple[ScenarioScores, ...]:
    """Returns all measured scenarios, the worst main score first, then by id. Scenarios without a main score come last."""
    values = {scenario: [tally.scores[score].get(scenario, []) for score in scores] for scenario in tally.clusters}
    scenarios = [
        ScenarioScores(scenario, {score: fmean(each) if each else None for score, each in zip(scores, of_scores, strict=True)})
        for scenario, of_scores in values.items()
    ]
    main = scores[0]
    return tuple(sorted(scenarios, key=lambda each: (each.scores[main] is None, -scale.loss(each.scores[main] or 0.0), each.scenario)))


def _scenario_passes(scenario: str, passed: int, trials: int) -> ScenarioPasses:
    return ScenarioPasses(scenario, passed, trials, *binomial_interval(passed, trials))


class RunReader:
    """Collects the numbers of a run in one pass over its rollouts. Only one rollout has to be in memory at a time."""

    def __init__(self) -> None:
        from pytest_agentbench.metrics.frame_reader import FrameReader  # imports numpy

        self._reader = FrameReader()
        self._frame: Frame | None = None
        self.suites = defaultdict[str, SuiteTally](SuiteTally)  # group -> counts and texts that the frame does not contain

    def add(self, rollout: Rollout, main_score: str, scale: Scale) -> None:
        """Adds a rollout of a scenario. `scale` is the scale of the suite's main score."""
        self.suites[rollout.key.group].add(rollout, main_score, scale)
        self._reader.add(rollout)
        self._frame = None

    @property
    def frame(self) -> Frame:
        """All rollouts so far as a frame (tables of rollouts, calls and attempts)."""
        if self._frame is None:
            self._frame = self._reader.frame()
        return self._frame


def build_run(facts: SessionFacts, groups: Sequence[PlannedSuite], read: RunReader) -> Run:
    """Returns the Run of a session, of imported results, or of a run that is scored again."""
    frame = read.frame
    suites = {each.name: _suite(_with_roles(each, facts.backend), read, facts.backend) for each in groups}
    concurrency = {each.session: each.concurrency for each in facts.sessions}
    performance = summarize(
        frame, PerformanceSettings(facts.settings.concurrency or 1, concurrency, facts.settings.slo, facts.settings.window)
    )
    if facts.imported and facts.stopwatch.verdict is None:  # the other tool did not record the times of calls
        performance = replace(performance, split=None)
    return Run(**facts.facts(), suites=suites, performance=performance, costs=total_costs([each.efficiency for each in suites.values()]))


def _suite(planned: PlannedSuite, read: RunReader, backend: BackendUse) -> SuiteResult:
    prices = prices_of(backend, planned.facts.variant)
    return build_suite(planned, read.suites[planned.name], read.frame.scenarios().where(group=planned.name), prices)


def prices_of(backend: BackendUse, variant: str) -> TokenPrices | None:
    """Returns the token prices of the backend that served a variant. None if its YAML has no prices."""
    prices = backend.described(variant).get("prices")
    return validate(Prices, prices, f"backend {backend.name}: prices").token_prices if prices else None


def _with_roles(planned: PlannedSuite, backend: BackendUse) -> PlannedSuite:
    """Returns the plan of a suite with the roles (models such as a judge) in force.

    Roles in the backend's YAML replace those of suite.yaml.
    """
    return replace(planned, roles={**planned.roles, **backend.described(planned.facts.variant).get("roles", {})})


def total_costs(suites: Iterable[Efficiency]) -> dict[str, float | None]:
    """Returns currency -> total cost of the suites. The total is None if the cost of one suite is unknown."""
    costs = defaultdict[str, list[float | None]](list)
    for each in suites:
        if each.currency:
            costs[each.currency].append(each.metrics["cost"])
    return {currency: None if None in values else fsum(filter(None, values)) for currency, values in costs.items()}
