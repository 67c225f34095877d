"""How sure a mean is, without scipy: pure functions on numbers.

The unit of observation is the scenario. Trials of one scenario are averaged first (`scenario_means`), because counting them as
independent gives intervals that are far too narrow; scenarios of one cluster (a template, a persona) are not independent either.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

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
    standard_error: float | None  # None when the values do not vary, so that it cannot be estimated
    method: str  # t | clustered t | clopper-pearson | hoeffding | none


def scenario_means(scores: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Scenario id -> mean of its trials; a scenario without a measured trial is left out, never counted as 0."""
    return {scenario: math.fsum(trials) / len(trials) for scenario, trials in scores.items() if trials}


def mean_interval(
    values: Sequence[float],
    clusters: Sequence[Hashable] | None = None,
    confidence: float = 0.95,
    limits: tuple[float, float] | None = (0.0, 1.0),
) -> Interval:
    """The mean of one value per scenario, with a two-sided confidence interval.

    `clusters` names the cluster of each value. `limits` are the least and the greatest possible value; pass None for a count
    or a latency, and limits that a value lies outside of are not used.

    - Student's t with n - 1 degrees of freedom; with clusters, the cluster-robust standard error (Miller 2024,
      arXiv 2411.00640, with the C/(C - 1) factor) and C - 1 degrees. Cut off at the limits.
    - Fewer than two values or clusters: no interval.
    - Values that do not vary prove no certainty. All at one limit: Clopper-Pearson, which for scores between the limits is on
      the safe side. Otherwise: Hoeffding. Without limits: no interval. Clusters count as one observation each (Kish's
      effective number where their sizes differ).

    Raises ValueError for a value that is not finite, for clusters that do not fit the values and for a confidence outside (0, 1).
    """
    _check(values, clusters, confidence)
    n = len(values)
    mean = math.fsum(values) / n if n else None
    independent = n if clusters is None else len(set(clusters))
    if mean is None or independent < 2:
        return Interval(mean, None, None, n, None, "none")
    limits = limits if limits and limits[0] <= min(values) and max(values) <= limits[1] else None
    error = _standard_error(values, clusters, mean)
    if error <= _NEGLIGIBLE * max(map(abs, values)):
        return _without_variation(values, mean, effective_number(n, clusters), confidence, limits)
    reach = student_t_quantile((1 + confidence) / 2, independent - 1) * error
    low, high = _within(limits, mean - reach, mean + reach)
    return Interval(mean, low, high, n, error, "t" if clusters is None else "clustered t")


def _standard_error(values: Sequence[float], clusters: Sequence[Hashable] | None, mean: float) -> float:
    """sqrt(C/(C-1) * sum over clusters of (sum of deviations)^2) / n; without clusters each value is its own."""
    deviations: dict[Hashable, list[float]] = {}
    for cluster, value in zip(range(len(values)) if clusters is None else clusters, values, strict=True):
        deviations.setdefault(cluster, []).append(value - mean)
    squares = math.fsum(math.fsum(each) ** 2 for each in deviations.values())
    return math.sqrt(len(deviations) / (len(deviations) - 1) * squares) / len(values)


def effective_number(n: int, clusters: Sequence[Hashable] | None) -> float:
    """How many independent observations the clusters are worth: n^2 / sum of size^2."""
    if clusters is None:
        return n
    sizes: dict[Hashable, int] = {}
    for cluster in clusters:
        sizes[cluster] = sizes.get(cluster, 0) + 1
    return n**2 / sum(size**2 for size in sizes.values())


def _without_variation(
    values: Sequence[float], mean: float, observations: float, confidence: float, limits: tuple[float, float] | None
) -> Interval:
    n = len(values)
    if limits is None:
        return Interval(mean, None, None, n, None, "none")
    least, greatest = limits
    error = (1 - confidence) / 2  # on either side
    if min(values) == greatest or max(values) == least:
        reach = (greatest - least) * (1 - error ** (1 / observations))
        method = "clopper-pearson"
    else:
        reach = (greatest - least) * math.sqrt(math.log(1 / error) / (2 * observations))
        method = "hoeffding"
    low, high = _within(limits, mean - reach, mean + reach)
    return Interval(mean, low, high, n, None, method)


def _within(limits: tuple[float, float] | None, low: float, high: float) -> tuple[float, float]:
    return (low, high) if limits is None else (max(low, limits[0]), min(high, limits[1]))


def _check(values: Sequence[float], clusters: Sequence[Hashable] | None, confidence: float) -> None:
    if wrong := [value for value in values if not math.isfinite(value)]:
        raise ValueError(f"{wrong[0]} is not a score")
    if clusters is not None and len(clusters) != len(values):
        raise ValueError(f"{len(values)} values, but {len(clusters)} clusters")
    if not 0 < confidence < 1:
        raise ValueError(f"a confidence is between 0 and 1, not {confidence}")
