"""Rollouts that pass or fail: pass@k and pass^k, of a scenario without bias, of a suite with an interval, and rules about them."""

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
    """What a rollout has to reach to pass: the floor under each scenario of a suite's main score."""

    score: str
    value: float
    falling: bool = False  # less is better, and the floor is a ceiling

    def reached(self, value: float) -> bool:
        return value <= self.value if self.falling else value >= self.value


def pass_all(passed: int, trials: int, k: int) -> float | None:
    """pass^k, P(all of k trials pass), without bias: C(passed, k) / C(trials, k) (Yao et al. 2024, arXiv 2406.12045).

    None with fewer than k trials: it is not known then.
    """
    if not 0 <= passed <= trials or k < 1:
        raise ValueError(f"{passed} of {trials} trials passed, k = {k}: no such thing")
    return math.comb(passed, k) / math.comb(trials, k) if trials >= k else None


@dataclass(frozen=True)
class PassRate:
    """`pass^3` or `pass@3`: which share of the scenarios passes in all of so many trials, or in one of them at least."""

    every: bool  # pass^k, or else pass@k (Chen et al. 2021, arXiv 2107.03374)
    k: int

    @classmethod
    def of(cls, name: str) -> PassRate:
        return cls(name[4] == "^", int(name[5:]))

    @property
    def name(self) -> str:
        return f"pass{'^' if self.every else '@'}{self.k}"

    def estimate(self, passed: int, trials: int) -> Estimate | None:
        """Of one scenario; None with fewer than k trials.

        The variance of the estimate U is U^2 - (p^k)^2, and C(passed, 2k) / C(trials, 2k) is p^2k without bias. With fewer than 2k trials
        nothing is, so the scenario cannot say how much of its value is chance. It rests on trials / k groups of k, and only as many
        are independent.
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
        """The mean over scenarios, of which (passed, trials) are known; those with fewer than k trials are left out.

        Of the suite scenarios are fixed, and with 2k trials of each the interval holds what chance does to them (`means.fixed_interval`);
        with fewer the spread of scenarios is in it, so that it is too wide rather than too narrow.
        """
        estimates = {name: estimate for name, counts in scenarios.items() if (estimate := self.estimate(*counts))}
        if of == SUITE:
            return fixed_interval([*estimates.values()], confidence, LIMITS)
        codes = Clusters.of_scenarios({name: clusters.get(name) for name in estimates}).codes
        return mean_interval([each.value for each in estimates.values()], codes, confidence, LIMITS)


def against_share(
    run: Mapping[str, ScenarioSample], rate: PassRate, limit: float, *, of: str = SUITE, confidence: float = 0.95
) -> Decision:
    """pass@k or pass^k of a run against a limit; scores are 1 of a trial that passed, else 0.

    What was lost counts as failed where it could make PASS wrong.
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
    assert interval.low is not None and interval.high is not None and interval.standard_error is not None  # two scenarios have them
    low = interval.low
    if any(each.lost for each in run.values()):
        planned = {name: (round(math.fsum(each.scores)), len(each.scores) + each.lost) for name, each in run.items()}
        at_worst = rate.interval(planned, clusters, confidence, of).low
        low = low if at_worst is None else min(low, at_worst)
    return decided(blank, SampledInterval(low, interval.high, interval.standard_error, interval.method), higher_is_better=True)


def _too_few(run: Mapping[str, ScenarioSample], counts: Mapping[str, tuple[int, int]], rate: PassRate, of: str) -> str:
    """Why these scenarios decide nothing, or an empty string."""
    if len(counts) < len(run) and len(counts) < 2:
        return f"{rate.name} takes {rate.k} trials of each scenario: --agentbench-trials={rate.k}"
    alone = Clusters.of(range(len(counts)))
    return too_few(Clusters.of_scenarios({name: run[name].cluster for name in counts}) if of == POPULATION else alone)


def pass_counts(
    scores: Mapping[str, Sequence[float]], crashed: Mapping[str, int], pass_threshold: PassThreshold
) -> dict[str, tuple[int, int]]:
    """Scenario -> (trials that passed, measured trials); one in which the agent raised did not pass."""
    names = dict.fromkeys([*scores, *crashed])
    return {
        name: (sum(map(pass_threshold.reached, scores.get(name, ()))), len(scores.get(name, ())) + crashed.get(name, 0)) for name in names
    }
