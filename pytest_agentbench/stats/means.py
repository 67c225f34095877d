"""Means over scenarios and their intervals, in two versions: with numpy arrays for gates, and with plain numbers for reports.

Trials of one scenario are averaged first (`scenario_means`). For the question `of suite`, scenarios are fixed and only their trials
vary; clusters do not matter. For `of population`, the unit of observation is the scenario, or its cluster (a template, a persona).

Arrays have the shape (..., scenarios, trials), so the simulations of `benchmarks/verdict-results.md` use the same code as gates. A trial
that was not measured is nan. The plain version lets reports work without importing numpy.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import mul
from typing import TYPE_CHECKING

from pytest_agentbench.stats.decisions import SUITE
from pytest_agentbench.stats.mean_intervals import Clusters, adjusted
from pytest_agentbench.stats.quantiles import normal_quantile, student_t_quantile, student_t_quantiles

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pytest_agentbench.stats.series import Floats


#: Number of scenarios with differing trials from which their own variance is trusted. If a single scenario is unstable, it has all the
#: variance of the suite, and in half of the runs its estimate is 0.
FEWEST_VARYING = 5

#: Imaginary trials at either end of the range, in squares of the normal quantile. With them the interval is never smaller than 3.4 / N of
#: the range; no method can do with less than 3.0 / N (benchmarks/verdict-results.md).
IMAGINARY = 0.4

_ROUNDING = 1e-18  # variance, relative to the squared values, below which it is a rounding error


def as_matrix(scores: Sequence[Sequence[float]]) -> Floats:
    """Returns an array (scenarios, trials) with one row per scenario, filled up with nan."""
    import numpy as np

    rows = np.full((len(scores), max(map(len, scores), default=0)), np.nan)
    for row, each in zip(rows, scores, strict=True):
        row[: len(each)] = each
    return rows


@dataclass(frozen=True)
class RunTrials:
    """The trials of one run, summarised by scenario: arrays (..., scenarios)."""

    count: Floats
    mean: Floats
    variance: Floats  # variance of a trial; nan for fewer than two trials

    @classmethod
    def of(cls, scores: Floats) -> RunTrials:
        """Summarises scores (..., scenarios, trials). Each scenario has at least one trial."""
        import numpy as np

        measured = ~np.isnan(scores)
        count = measured.sum(-1).astype(np.float64)
        known = np.where(measured, scores, 0.0)
        mean = known.sum(-1) / count
        squares = np.where(measured, (known - mean[..., None]) ** 2, 0.0).sum(-1)
        squares = np.where(squares <= _ROUNDING * mean**2, 0.0, squares)
        with np.errstate(divide="ignore", invalid="ignore"):
            return cls(count, mean, squares / (count - 1))


@dataclass(frozen=True)
class Noise:
    """A mean over scenarios and its sampling variance: arrays (...)."""

    mean: Floats
    variance: Floats
    degrees: Floats  # degrees of freedom
    trials: Floats  # number of measured trials, in the run that has fewer
    scenarios: int
    paired: NDArray[np.bool_]  # whether the variance is that between scenarios, which includes the spread of their changes
    is_constant: NDArray[np.bool_]  # whether nothing varies at all, which does not prove certainty


def noise(*runs: RunTrials) -> Noise:
    """Returns the mean of a run with its sampling variance, or the mean difference new - base of a run and its baseline.

    - Scenarios with at least two trials in each run have a variance of their own, s^2 / K for K trials. The degrees of freedom are by
      Welch (1947) and Satterthwaite (1946): V^2 / sum(v^2 / (nu + 2)) - 2. The twos remove the bias of s^4 at few degrees.
    - Scenarios with a single trial use the variance between their values d with the mean D, (d - D)^2 / (n (n - 1)). It is too large if
      their changes differ, never too small (Neyman 1923; Cochran 1977, 5A.12).
    - If fewer than `FEWEST_VARYING` scenarios vary, the larger of the two variances is used.
    """
    import numpy as np

    new, *others = runs
    values = new.mean - others[0].mean if others else new.mean
    n = values.shape[-1]
    mean = values.mean(-1)
    deviations = (values - mean[..., None]) ** 2 / (n * (n - 1))
    several = np.logical_and.reduce([run.count > 1 for run in runs])
    own = [np.where(several, run.variance / run.count, 0.0) / n**2 for run in runs]
    varying = np.logical_or.reduce([squares > 0 for squares in own])
    alone = (~several).sum(-1)
    left, between = np.where(several, 0.0, deviations).sum(-1), deviations.sum(-1)
    variance = left + sum(squares.sum(-1) for squares in own)
    with np.errstate(divide="ignore", invalid="ignore"):  # Shares, because the square of a tiny variance would underflow to 0
        fourth = (left / variance) ** 2 / (alone + 1)
        for run, squares in zip(runs, own, strict=True):
            fourth += ((squares / variance[..., None]) ** 2 / (run.count + 1)).sum(-1)
    paired = (varying.sum(-1) < FEWEST_VARYING) & (between >= variance)
    variance = np.where(paired, between, variance)
    is_constant = variance <= _ROUNDING * np.maximum.reduce([np.abs(run.mean).max(-1) for run in runs]) ** 2
    with np.errstate(divide="ignore", invalid="ignore"):
        degrees = np.where(paired | is_constant, n - 1, 1 / fourth - 2)
    trials = np.minimum.reduce([run.count.sum(-1) for run in runs])
    return Noise(mean, variance, np.maximum(degrees, 1.0), trials, n, paired, is_constant)


@dataclass(frozen=True)
class IntervalArrays:
    """The lower and upper ends of intervals: arrays (...)."""

    low: Floats
    high: Floats
    error: Floats  # standard error


def known(noise: Noise) -> Noise:
    """Returns the noise with infinite degrees of freedom, so that its intervals use normal quantiles instead of Student's t.

    It is for scenarios with one trial each that passes or fails, as in McNemar's test. With few scenarios, t would detect too little.
    """
    import numpy as np

    return replace(noise, degrees=np.full_like(noise.degrees, np.inf))


def plain(noise: Noise, confidence: float) -> IntervalArrays:
    """Returns the interval of Student's t, which decides FAIL."""
    import numpy as np

    error = np.sqrt(noise.variance)
    reach = student_t_quantiles((1 + confidence) / 2, noise.degrees) * error
    return IntervalArrays(noise.mean - reach, noise.mean + reach, error)


def guarded(noise: Noise, limits: tuple[float, float], confidence: float) -> IntervalArrays:
    """Returns the interval with imaginary trials at both ends of the range, which decides PASS together with `plain`.

    A hundred trials of which none failed do not prove that none ever fails. Agresti and Coull (1998) add imaginary trials to a
    proportion; here they are added to the mean of all scenarios.
    """
    import numpy as np

    low, high = limits
    weight = imaginary(confidence)
    everything = noise.trials + 2 * weight
    centre = (noise.mean * noise.trials + weight * (low + high)) / everything
    squares = noise.trials**2 * noise.variance + weight * ((high - centre) ** 2 + (centre - low) ** 2)
    error = np.sqrt(squares) / everything
    degrees = np.maximum(noise.degrees, noise.scenarios - 1)
    reach = student_t_quantiles((1 + confidence) / 2, degrees) * error
    return IntervalArrays(np.maximum(centre - reach, low), np.minimum(centre + reach, high), error)


def decision_bounds(noise: Noise, limits: tuple[float, float], confidence: float) -> IntervalArrays:
    """Returns the interval of a difference, new - base, from which a verdict follows.

    Its lower end, for PASS, is the lower one of two intervals: Student's t (`plain`), and that with imaginary trials (`guarded`). Its
    upper end, for FAIL, is that of Student's t or, if nothing varies, the higher one of both.
    """
    import numpy as np

    one, other = plain(noise, confidence), guarded(noise, limits, confidence)
    return IntervalArrays(
        np.maximum(np.minimum(one.low, other.low), limits[0]),
        np.minimum(np.where(noise.is_constant, np.maximum(one.high, other.high), one.high), limits[1]),
        one.error,
    )


def imaginary(confidence: float) -> float:
    """Returns how many imaginary trials are added at each end of the range of the values to widen an interval.

    It need not be a whole number.
    """
    return IMAGINARY * normal_quantile((1 + confidence) / 2) ** 2


#: Standard error, relative to the largest value, below which it is a rounding error.
_NEGLIGIBLE = 1e-9


@dataclass(frozen=True)
class Interval:
    """A mean and its confidence interval."""

    mean: float | None  # None without values
    low: float | None  # lower end; None without an interval
    high: float | None  # upper end; None without an interval
    n: int  # number of values
    clusters: int  # number of clusters; `n` if each value is a cluster of its own
    standard_error: float | None  # None if unknown; in an adjusted interval it includes the imaginary scenarios
    method: str  # within-scenario t | between-scenario t | [clustered] adjusted t | [clustered] t | none


def scenario_means(scores: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Returns scenario id -> mean of its trials. A scenario without a measured trial is left out, never counted as 0."""
    return {scenario: math.fsum(trials) / len(trials) for scenario, trials in scores.items() if trials}


def scenarios_interval(
    scores: Mapping[str, Sequence[float]],
    clusters: Mapping[str, str | None],
    confidence: float = 0.95,
    limits: tuple[float, float] | None = (0.0, 1.0),
    of: str = SUITE,
) -> Interval:
    """Returns the mean of a score over scenarios with its interval. Reports print it, and gates compare it with limits.

    `scores` maps scenarios to the scores of their trials, `clusters` maps scenarios to their cluster, if any.
    """
    if of == SUITE:
        return suite_interval([trials for trials in scores.values() if trials], confidence, limits)
    means = scenario_means(scores)
    groups = Clusters.of_scenarios({scenario: clusters.get(scenario) for scenario in means})
    return mean_interval([*means.values()], groups.codes, confidence, limits)


def suite_interval(
    scores: Sequence[Sequence[float]], confidence: float = 0.95, limits: tuple[float, float] | None = (0.0, 1.0)
) -> Interval:
    """Returns the mean score over fixed scenarios with an interval for the variation of their trials. The scenarios are no sample.

    `scores` has the scores of each scenario's trials, at least one. Limits are ignored if a score lies outside.
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
    """An estimate of a value of one scenario, from its trials."""

    value: float
    variance: float | None  # sampling variance of the value; None with too few trials
    degrees: float  # degrees of freedom of that variance
    observations: float  # number of independent observations behind the value


def fixed_interval(estimates: Sequence[Estimate], confidence: float, limits: tuple[float, float] | None) -> Interval:
    """Returns the mean over fixed scenarios. Its interval follows from the sampling variance of each scenario's estimate.

    With limits, the interval is the wider of two: with imaginary observations at both ends (`guarded`) and without them. Without limits
    there is no interval if nothing varies. Fewer than two scenarios have no interval.
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
    between: bool  # whether the error is that between scenarios, which is too large rather than too small


def _noise(estimates: Sequence[Estimate], mean: float) -> _Noise:
    n = len(estimates)
    deviations = [(each.value - mean) ** 2 / (n * (n - 1)) for each in estimates]
    own = [(each.variance / n**2, each.degrees) for each in estimates if each.variance is not None]
    left = math.fsum(square for each, square in zip(estimates, deviations, strict=True) if each.variance is None)
    variance, between = math.fsum([*(square for square, _ in own), left]), math.fsum(deviations)
    if sum(square > 0 for square, _ in own) < FEWEST_VARYING and between >= variance:
        return _Noise(math.sqrt(between), n - 1, between=True)
    # Shares, because the square of a variance underflows to 0 for scores that differ by 1e-90 or less.
    fourth = math.fsum((square / variance) ** 2 / (degrees + 2) for square, degrees in [*own, (left, n - len(own) - 1)])
    return _Noise(math.sqrt(variance), max(1.0, 1 / fourth - 2), between=False)


def _variance(trials: Sequence[float], mean: float) -> float:
    """Returns the variance of the mean of some trials."""
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
    """Returns the mean of one value per scenario, with a two-sided confidence interval.

    `clusters` names the cluster of each value. `limits` are the least and the greatest possible value, or None, for example
    for a count or a latency. They are ignored if a value lies outside.

    - With limits, the interval is Student's t with imaginary scenarios at both ends (`mean_intervals`), cluster-robust if there are
      clusters. It is also right near the limits, and does not claim certainty if the values do not vary (benchmarks/verdict-results.md).
    - Without limits, the interval is Student's t with n - 1 degrees of freedom. With C clusters, it has the cluster-robust standard error
      (Miller 2024, arXiv 2411.00640, with the C/(C - 1) factor) and C - 1 degrees. No interval if the values do not vary.
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
    """Returns the cluster-robust standard error: sqrt(C/(C-1) * sum over clusters of (sum of deviations)^2) / n."""
    count = len(groups.sizes)
    squares = math.fsum(total**2 for total in _totals([value - mean for value in values], groups))
    return math.sqrt(count / (count - 1) * squares) / len(values)


def _totals(values: Sequence[float], groups: Clusters) -> list[float]:
    """Returns the sum of the values in each cluster of `groups`."""
    members: list[list[float]] = [[] for _ in groups.sizes]
    for code, value in zip(groups.codes, values, strict=True):
        members[code].append(value)
    return [math.fsum(each) for each in members]


def _check(values: Sequence[float], clusters: Sequence[Hashable] | None, confidence: float) -> None:
    if wrong := [value for value in values if not math.isfinite(value)]:
        raise ValueError(f"score {wrong[0]} must be finite")
    if clusters is not None and len(clusters) != len(values):
        raise ValueError(f"{len(values)} values need a cluster each, but {len(clusters)} clusters are given")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence {confidence} must be between 0 and 1, such as 0.95")
