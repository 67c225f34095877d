"""pass@k and pass^k: unbiased estimates for a scenario, intervals for a suite, and decisions against a limit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_agentbench.stats.decisions import INCONCLUSIVE, POPULATION, SUITE, Decision, MissingScenarios
from pytest_agentbench.stats.intervals import SampledInterval, decided, too_few
from pytest_agentbench.stats.mean_intervals import Clusters
from pytest_agentbench.stats.means import Estimate, Interval, fixed_interval, mean_interval
from pytest_agentbench.stats.paired import ScenarioSample

LIMITS = (0.0, 1.0)


@dataclass(frozen=True)
class PassThreshold:
    """The threshold at which a rollout passes, for the main score of a suite."""

    score: str
    value: float
    falling: bool = False  # whether lower is better, so passing scores are at most `value`

    def reached(self, value: float) -> bool:
        """Returns whether a score passes."""
        return value <= self.value if self.falling else value >= self.value


def pass_all(passed: int, trials: int, k: int) -> float | None:
    """Returns an unbiased estimate of pass^k, P(all of k trials pass): C(passed, k) / C(trials, k) (Yao et al. 2024, arXiv 2406.12045).

    Returns None with fewer than k trials.
    """
    if not 0 <= passed <= trials or k < 1:
        raise ValueError(f"the number of passed trials ({passed}) must be from 0 to that of all trials ({trials}), and k ({k}) at least 1")
    return math.comb(passed, k) / math.comb(trials, k) if trials >= k else None


@dataclass(frozen=True)
class PassRate:
    """`pass^3` or `pass@3`: the share of scenarios that pass in all of k trials, or in at least one of them."""

    every: bool  # True: pass^k; False: pass@k (Chen et al. 2021, arXiv 2107.03374)
    k: int  # number of trials

    @classmethod
    def of(cls, name: str) -> PassRate:
        return cls(name[4] == "^", int(name[5:]))

    @property
    def name(self) -> str:
        return f"pass{'^' if self.every else '@'}{self.k}"

    def estimate(self, passed: int, trials: int) -> Estimate | None:
        """Returns the estimate for one scenario, or None with fewer than k trials.

        The variance of the estimate U is U^2 - (p^k)^2, and C(passed, 2k) / C(trials, 2k) estimates p^2k without bias. With fewer than 2k
        trials there is no such estimate, so the variance is unknown. The number of independent observations is trials / k, the number of
        groups of k trials.
        """
        alike = passed if self.every else trials - passed
        value = pass_all(alike, trials, self.k)
        if value is None:
            return None
        square = pass_all(alike, trials, 2 * self.k)
        variance = None if square is None else max(0.0, value**2 - square)
        return Estimate(value if self.every else 1 - value, variance, trials // self.k - 1, trials / self.k)

    def interval(
        self,
        scenarios: Mapping[str, tuple[int, int]],
        clusters: Mapping[str, str | None],
        confidence: float = 0.95,
        of: str = SUITE,
    ) -> Interval:
        """Returns the mean over scenarios, given their (passed, trials), with its interval. Leaves out scenarios with fewer than k trials.

        For the question SUITE, scenarios are fixed. With 2k trials of each, the interval contains only the variance of trials
        (`means.fixed_interval`). With fewer, it also contains the spread between scenarios, and is too wide rather than too narrow.
        """
        estimates = {name: estimate for name, counts in scenarios.items() if (estimate := self.estimate(*counts))}
        if of == SUITE:
            return fixed_interval([*estimates.values()], confidence, LIMITS)
        codes = Clusters.of_scenarios({name: clusters.get(name) for name in estimates}).codes
        return mean_interval([each.value for each in estimates.values()], codes, confidence, LIMITS)


def against_share(
    run: Mapping[str, ScenarioSample], rate: PassRate, limit: float, *, of: str = SUITE, confidence: float = 0.95
) -> Decision:
    """Returns the decision whether pass@k or pass^k of a run reaches a limit. The scores in `run` are 1 for a trial that passed, else 0.

    Lost trials count as failed for the lower end of the interval, which decides PASS.
    """
    counts = {name: (round(math.fsum(each.scores)), len(each.scores)) for name, each in run.items() if len(each.scores) >= rate.k}
    clusters = {name: each.cluster for name, each in run.items()}
    interval = rate.interval(counts, clusters, confidence, of)
    blank = Decision(
        verdict=INCONCLUSIVE,
        estimate=interval.mean,
        threshold=limit,
        confidence=confidence,
        n=len(counts),
        trials=(sum(trials for _, trials in counts.values()), 0),
        of=of,
        missing=MissingScenarios(unmeasured=len(run) - len(counts)),
    )
    if reason := _too_few(run, counts, rate, of):
        return replace(blank, reason=reason)
    assert interval.low is not None and interval.high is not None and interval.standard_error is not None  # ensured by `_too_few`
    low = interval.low
    if any(each.lost for each in run.values()):
        planned = {name: (round(math.fsum(each.scores)), len(each.scores) + each.lost) for name, each in run.items()}
        at_worst = rate.interval(planned, clusters, confidence, of).low
        low = low if at_worst is None else min(low, at_worst)
    return decided(blank, SampledInterval(low, interval.high, interval.standard_error, interval.method), higher_is_better=True)


def _too_few(run: Mapping[str, ScenarioSample], counts: Mapping[str, tuple[int, int]], rate: PassRate, of: str) -> str:
    """Returns why there are too few trials, scenarios or clusters for a decision, or an empty string."""
    if len(counts) < len(run) and len(counts) < 2:
        return f"{rate.name} needs {rate.k} trials of each scenario: --agentbench-trials={rate.k}"
    alone = Clusters.of(range(len(counts)))
    return too_few(Clusters.of_scenarios({name: run[name].cluster for name in counts}) if of == POPULATION else alone)


def pass_counts(
    scores: Mapping[str, Sequence[float]], crashed: Mapping[str, int], pass_threshold: PassThreshold
) -> dict[str, tuple[int, int]]:
    """Returns scenario -> (passed trials, measured trials). Trials in which the agent raised an error (`crashed`) did not pass."""
    names = dict.fromkeys([*scores, *crashed])
    return {
        name: (sum(map(pass_threshold.reached, scores.get(name, ()))), len(scores.get(name, ())) + crashed.get(name, 0)) for name in names
    }
