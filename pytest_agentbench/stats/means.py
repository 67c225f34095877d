"""How sure a mean is: pure functions on numbers, which cost a report no numpy.

Trials of one scenario are averaged first (`scenario_means`). `of suite` scenarios are fixed and only their trials vary (`trials` has the
same in arrays, for differences); `of population` the unit of observation is the scenario, or its cluster (a template, a persona).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from operator import mul

from pytest_agentbench.stats.bounded import Clusters, adjusted
from pytest_agentbench.stats.decisions import SUITE
from pytest_agentbench.stats.special import student_t_quantile
from pytest_agentbench.stats.trials import FEWEST_VARYING, imaginary

#: Relative to the largest value: a standard error below this is rounding, not variation.
_NEGLIGIBLE = 1e-9


@dataclass(frozen=True)
class Interval:
    """A mean and where the true one lies."""

    mean: float | None  # None when there are no values
    low: float | None  # None when the values say nothing about it
    high: float | None
    n: int  # values
    clusters: int  # that they are in: `n` where each is one of its own
    standard_error: float | None  # None when it cannot be estimated; of an adjusted one, imaginary scenarios included
    method: str  # within-scenario t | between-scenario t | [clustered] adjusted t | [clustered] t | none


def scenario_means(scores: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Scenario id -> mean of its trials; a scenario without a measured trial is left out, never counted as 0."""
    return {scenario: math.fsum(trials) / len(trials) for scenario, trials in scores.items() if trials}


def scenarios_interval(
    scores: Mapping[str, Sequence[float]],
    clusters: Mapping[str, str | None],
    confidence: float = 0.95,
    limits: tuple[float, float] | None = (0.0, 1.0),
    of: str = SUITE,
) -> Interval:
    """The mean of a score over scenarios with its interval: what every report prints, and what a gate judges a score's limit by.

    `scores` has the trials of each scenario, `clusters` the cluster of each that names one.
    """
    if of == SUITE:
        return suite_interval([trials for trials in scores.values() if trials], confidence, limits)
    means = scenario_means(scores)
    groups = Clusters.of_scenarios({scenario: clusters.get(scenario) for scenario in means})
    return mean_interval([*means.values()], groups.codes, confidence, limits)


def suite_interval(
    scores: Sequence[Sequence[float]], confidence: float = 0.95, limits: tuple[float, float] | None = (0.0, 1.0)
) -> Interval:
    """The mean of these scenarios, each with a trial at least, where only their trials vary (`trials.noise` says how).

    Limits that a score lies outside of are not used.
    """
    every = [score for trials in scores for score in trials]
    _check(every, None, confidence)
    within = limits if limits and every and limits[0] <= min(every) and max(every) <= limits[1] else None
    means = [math.fsum(trials) / len(trials) for trials in scores]
    estimates = [
        Estimate(mean, _variance(trials, mean) if len(trials) > 1 else None, len(trials) - 1, len(trials))
        for trials, mean in zip(scores, means, strict=True)
    ]
    return fixed_interval(estimates, confidence, within)


@dataclass(frozen=True)
class Estimate:
    """What the trials of one scenario say of it."""

    value: float
    variance: float | None  # of the value, by chance; None where the trials are too few to say
    degrees: float  # of freedom of that variance
    observations: float  # independent ones, that the value is the mean of


def fixed_interval(estimates: Sequence[Estimate], confidence: float, limits: tuple[float, float] | None) -> Interval:
    """The mean of scenarios that are fixed, with what chance does to each of them.

    Within limits it is wide enough with imaginary observations at both ends (`trials.guarded`) and without them. Without limits there
    is no interval where nothing varies. Fewer than two scenarios have none.
    """
    n = len(estimates)
    mean = math.fsum(each.value for each in estimates) / n if n else None
    if mean is None or n < 2:
        return Interval(mean, None, None, n, n, None, "none")
    noise = _noise(estimates, mean)
    reach = student_t_quantile((1 + confidence) / 2, noise.degrees) * noise.error
    method = "between-scenario t" if noise.between else "within-scenario t"
    if limits:
        low, high = _guarded(mean, noise, math.fsum(each.observations for each in estimates), n, limits, confidence)
        return Interval(mean, max(min(low, mean - reach), limits[0]), min(max(high, mean + reach), limits[1]), n, n, noise.error, method)
    if noise.error <= _NEGLIGIBLE * max(abs(each.value) for each in estimates):
        return Interval(mean, None, None, n, n, None, "none")
    return Interval(mean, mean - reach, mean + reach, n, n, noise.error, method)


@dataclass(frozen=True)
class _Noise:
    error: float
    degrees: float
    between: bool  # whether it is the spread of the scenarios' values, too wide rather than too narrow


def _noise(estimates: Sequence[Estimate], mean: float) -> _Noise:
    n = len(estimates)
    apart = [(each.value - mean) ** 2 / (n * (n - 1)) for each in estimates]
    own = [(each.variance / n**2, each.degrees) for each in estimates if each.variance is not None]
    left = math.fsum(square for each, square in zip(estimates, apart, strict=True) if each.variance is None)
    variance, between = math.fsum([*(square for square, _ in own), left]), math.fsum(apart)
    if sum(square > 0 for square, _ in own) < FEWEST_VARYING and between >= variance:
        return _Noise(math.sqrt(between), n - 1, between=True)
    # Of shares of the variance: its own square is 0 for scores that differ by 1e-90 and less.
    fourth = math.fsum((square / variance) ** 2 / (degrees + 2) for square, degrees in [*own, (left, n - len(own) - 1)])
    return _Noise(math.sqrt(variance), max(1.0, 1 / fourth - 2), between=False)


def _variance(trials: Sequence[float], mean: float) -> float:
    """Of the mean of some trials."""
    squares = math.fsum((score - mean) ** 2 for score in trials)
    return squares / (len(trials) - 1) / len(trials) if squares > (_NEGLIGIBLE * mean) ** 2 else 0.0


def _guarded(
    mean: float, noise: _Noise, observations: float, scenarios: int, limits: tuple[float, float], confidence: float
) -> tuple[float, float]:
    weight = imaginary(confidence)
    everything = observations + 2 * weight
    centre = (mean * observations + weight * sum(limits)) / everything
    squares = (observations * noise.error) ** 2 + weight * ((limits[1] - centre) ** 2 + (centre - limits[0]) ** 2)
    reach = student_t_quantile((1 + confidence) / 2, max(noise.degrees, scenarios - 1)) * math.sqrt(squares) / everything
    return centre - reach, centre + reach


def mean_interval(
    values: Sequence[float],
    clusters: Sequence[Hashable] | None = None,
    confidence: float = 0.95,
    limits: tuple[float, float] | None = (0.0, 1.0),
) -> Interval:
    """The mean of one value per scenario, with a two-sided confidence interval.

    `clusters` names the cluster of each value. `limits` are the least and the greatest possible value; pass None for a count
    or a latency, and limits that a value lies outside of are not used.

    - Within limits: t with imaginary scenarios at both ends (`bounded`), cluster-robust where there are clusters. Values that do
      not vary prove no certainty, and near the limits it holds where t does not (benchmarks/verdict-results.md).
    - Without: Student's t with n - 1 degrees of freedom; with clusters, the cluster-robust standard error (Miller 2024,
      arXiv 2411.00640, with the C/(C - 1) factor) and C - 1 degrees. No interval where the values do not vary.
    - Fewer than two values or clusters: no interval.

    Raises ValueError for a value that is not finite, for clusters that do not fit the values and for a confidence outside (0, 1).
    """
    _check(values, clusters, confidence)
    n = len(values)
    mean = math.fsum(values) / n if n else None
    groups = Clusters.of(range(n) if clusters is None else clusters)
    if mean is None or len(groups.sizes) < 2:
        return Interval(mean, None, None, n, len(groups.sizes), None, "none")
    prefix = "" if groups.single else "clustered "
    upper = (1 + confidence) / 2
    if limits and limits[0] <= min(values) and max(values) <= limits[1]:
        centre, error = _adjusted(values, groups, limits, confidence)
        reach = student_t_quantile(upper, groups.effective - 1) * error
        low, high = max(centre - reach, limits[0]), min(centre + reach, limits[1])
        return Interval(mean, low, high, n, len(groups.sizes), error, f"{prefix}adjusted t")
    error = _standard_error(values, groups, mean)
    if error <= _NEGLIGIBLE * max(map(abs, values)):
        return Interval(mean, None, None, n, len(groups.sizes), None, "none")
    reach = student_t_quantile(upper, len(groups.sizes) - 1) * error
    return Interval(mean, mean - reach, mean + reach, n, len(groups.sizes), error, f"{prefix}t")


def _adjusted(values: Sequence[float], groups: Clusters, limits: tuple[float, float], confidence: float) -> tuple[float, float]:
    totals = _totals(values, groups)
    squares, products = (math.fsum(map(mul, totals, others)) for others in (totals, groups.sizes))
    return adjusted(math.fsum(totals), squares, products, groups, limits, confidence)


def _standard_error(values: Sequence[float], groups: Clusters, mean: float) -> float:
    """sqrt(C/(C-1) * sum over clusters of (sum of deviations)^2) / n."""
    count = len(groups.sizes)
    squares = math.fsum(total**2 for total in _totals([value - mean for value in values], groups))
    return math.sqrt(count / (count - 1) * squares) / len(values)


def _totals(values: Sequence[float], groups: Clusters) -> list[float]:
    """The sum of each cluster."""
    members: list[list[float]] = [[] for _ in groups.sizes]
    for code, value in zip(groups.codes, values, strict=True):
        members[code].append(value)
    return [math.fsum(each) for each in members]


def _check(values: Sequence[float], clusters: Sequence[Hashable] | None, confidence: float) -> None:
    if wrong := [value for value in values if not math.isfinite(value)]:
        raise ValueError(f"{wrong[0]} is not a score")
    if clusters is not None and len(clusters) != len(values):
        raise ValueError(f"{len(values)} values, but {len(clusters)} clusters")
    if not 0 < confidence < 1:
        raise ValueError(f"a confidence is between 0 and 1, not {confidence}")
