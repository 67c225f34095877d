"""How sure a mean is: in arrays, for differences and for benchmarks/verdict-results.md, and in plain numbers, which cost a report no numpy.

Trials of one scenario are averaged first (`scenario_means`). `of suite` scenarios are fixed and only their trials vary; clusters play no
part. `of population` the unit of observation is the scenario, or its cluster (a template, a persona).

Arrays have the shape (..., scenarios, trials), so that `benchmarks/verdict-results.md` is made by the code that judges. A trial that
was not measured is nan.
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


#: Scenarios whose trials have to differ before their variance is trusted: one scenario that broke half is all the variance that a sure
#: suite has, and its own estimate is 0 in half of the runs.
FEWEST_VARYING = 5

#: Imaginary trials at either end of the range, in squares of the normal quantile. They put a floor of 3.4 / N of the range under the
#: interval, and the least that any method can have is 3.0 / N (benchmarks/verdict-results.md).
IMAGINARY = 0.4

_ROUNDING = 1e-18  # relative to the square of what was measured: a variance below this is none


def as_matrix(scores: Sequence[Sequence[float]]) -> Floats:
    """(scenarios, trials): one row a scenario, filled up with nan."""
    import numpy as np

    rows = np.full((len(scores), max(map(len, scores), default=0)), np.nan)
    for row, each in zip(rows, scores, strict=True):
        row[: len(each)] = each
    return rows


@dataclass(frozen=True)
class RunTrials:
    """The trials of one run, summed up by scenario: arrays (..., scenarios)."""

    count: Floats
    mean: Floats
    variance: Floats  # of a trial; nan of fewer than two

    @classmethod
    def of(cls, scores: Floats) -> RunTrials:
        """Of (..., scenarios, trials); each scenario has a trial at least."""
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
    """A mean over scenarios and how far chance may have moved it: arrays (...)."""

    mean: Floats
    variance: Floats
    degrees: Floats  # of freedom
    trials: Floats  # measured, in the run that has fewer
    scenarios: int
    paired: NDArray[np.bool_]  # whether the variance is that of scenarios among each other, which holds the spread of their changes too
    is_constant: NDArray[np.bool_]  # whether nothing varies at all, which proves no certainty


def noise(*runs: RunTrials) -> Noise:
    """Of a run, or of a run and its baseline (the difference, new - base).

    - Scenarios with two trials or more on each side have a variance of their own, s^2 / K, and degrees of freedom by Welch (1947) and
      Satterthwaite (1946): V^2 / sum(v^2 / (nu + 2)) - 2, whose twos take the bias from s^4 at few degrees.
    - Those with a single trial share that of their values among each other, (d - D)^2 / (n (n - 1)): too wide where their changes
      differ, never too narrow (Neyman 1923; Cochran 1977, 5A.12).
    - Where fewer than `FEWEST_VARYING` scenarios vary, the larger of the two is taken.
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
    with np.errstate(divide="ignore", invalid="ignore"):  # shares: the square of a variance is 0 for scores that differ by 1e-90 and less
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
    """An interval, its sides by themselves: arrays (...)."""

    low: Floats
    high: Floats
    error: Floats  # standard error


def known(noise: Noise) -> Noise:
    """Of one trial each that passes or fails: the normal quantile, as in McNemar's test; t finds too little with few scenarios."""
    import numpy as np

    return replace(noise, degrees=np.full_like(noise.degrees, np.inf))


def plain(noise: Noise, confidence: float) -> IntervalArrays:
    """Student's t: what FAIL is decided by."""
    import numpy as np

    error = np.sqrt(noise.variance)
    reach = student_t_quantiles((1 + confidence) / 2, noise.degrees) * error
    return IntervalArrays(noise.mean - reach, noise.mean + reach, error)


def guarded(noise: Noise, limits: tuple[float, float], confidence: float) -> IntervalArrays:
    """With imaginary trials at both ends of the range: what PASS is decided by, beside `plain`.

    A hundred trials of which none failed do not prove that none ever fails. Agresti and Coull (1998) join imaginary trials to a
    proportion; here they join the mean of all scenarios.
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
    """Of a difference: PASS needs both lower bounds, FAIL the plain upper one; where nothing varies, that with imaginary trials."""
    import numpy as np

    one, other = plain(noise, confidence), guarded(noise, limits, confidence)
    return IntervalArrays(
        np.maximum(np.minimum(one.low, other.low), limits[0]),
        np.minimum(np.where(noise.is_constant, np.maximum(one.high, other.high), one.high), limits[1]),
        one.error,
    )


def imaginary(confidence: float) -> float:
    """How many imaginary trials join at either end of the range."""
    return IMAGINARY * normal_quantile((1 + confidence) / 2) ** 2


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
    deviations = [(each.value - mean) ** 2 / (n * (n - 1)) for each in estimates]
    own = [(each.variance / n**2, each.degrees) for each in estimates if each.variance is not None]
    left = math.fsum(square for each, square in zip(estimates, deviations, strict=True) if each.variance is None)
    variance, between = math.fsum([*(square for square, _ in own), left]), math.fsum(deviations)
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

    - Within limits: t with imaginary scenarios at both ends (`mean_intervals`), cluster-robust where there are clusters. Values that do
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
