"""How sure a mean is: pure functions on numbers, which cost a report no numpy.

The unit of observation is the scenario. Trials of one scenario are averaged first (`scenario_means`), because counting them as
independent gives intervals that are far too narrow; scenarios of one cluster (a template, a persona) are not independent either.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from operator import mul

from pytest_agentbench.gate.bounded import Clusters, adjusted
from pytest_agentbench.gate.special import student_t_quantile

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
    method: str  # [clustered] adjusted t | [clustered] t | none


def scenario_means(scores: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Scenario id -> mean of its trials; a scenario without a measured trial is left out, never counted as 0."""
    return {scenario: math.fsum(trials) / len(trials) for scenario, trials in scores.items() if trials}


def scenarios_interval(
    scores: Mapping[str, Sequence[float]],
    clusters: Mapping[str, str | None],
    confidence: float = 0.95,
    limits: tuple[float, float] | None = (0.0, 1.0),
) -> Interval:
    """The mean of a score over scenarios with its interval: what every report prints, and what a gate judges scores with limits by.

    `scores` has the trials of each scenario, `clusters` the cluster of each that names one.
    """
    means = scenario_means(scores)
    groups = Clusters.of_scenarios({scenario: clusters.get(scenario) for scenario in means})
    return mean_interval([*means.values()], groups.codes, confidence, limits)


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
      not vary prove no certainty, and near the limits it holds where t does not (docs/verdict-results.md).
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
