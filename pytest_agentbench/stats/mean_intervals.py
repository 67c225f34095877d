"""Intervals of means: of scores within a range, of clusters, of values without limits, and of trials that pass or fail.

The intervals of scores within a range are also right where Student's t is not: near the ends of the range, and without variation. For
example, twenty scenarios of which none changed have no variation, and t would claim certainty. So imaginary scenarios are added at
either end of the range before the usual t interval is computed. Agresti and Coull (1998) do so for a proportion, Bonett and Price (2012)
for a paired difference of proportions. `benchmarks/verdict-results.md` shows the costs and the benefits.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from pytest_agentbench.stats.quantiles import binomial_at_most, normal_quantile, student_t_quantile

if TYPE_CHECKING:
    from pytest_agentbench.stats.series import Floats


Number = TypeVar("Number", float, "Floats")

#: Imaginary scenarios at either end, in squares of the normal quantile: 1.54 for 95 %. Agresti and Coull have 0.5 (the centre of
#: Wilson's interval), Bonett and Price 0.26 (one). The worst case is a suite that breaks in whole scenarios, because more trials do not
#: help. With 0.4 it passes wrongly with probability 1 - confidence at most, with 0.26 more often (test_mean_intervals_bounded.py).
IMAGINARY = 0.4

#: Fewest effective clusters for a decision. "Few" begins between 20 and 50 clusters of equal size (Cameron and Miller 2015,
#: J. Human Resources 50(2), VI) for normal quantiles. With t quantiles for the effective number, the table is right from 10.
FEWEST_CLUSTERS = 10


@dataclass(frozen=True)
class Clusters:
    """The clusters of scenarios. Without clusters, each scenario is a cluster of its own."""

    codes: tuple[int, ...]  # cluster number of each scenario, from 0
    sizes: tuple[int, ...]  # number of scenarios in each cluster

    @classmethod
    def of(cls, names: Sequence[Hashable]) -> Clusters:
        numbers: dict[Hashable, int] = {}
        codes = tuple(numbers.setdefault(name, len(numbers)) for name in names)
        sizes = [0] * len(numbers)
        for code in codes:
            sizes[code] += 1
        return cls(codes, tuple(sizes))

    @classmethod
    def of_scenarios(cls, clusters: Mapping[str, str | None]) -> Clusters:
        """Returns the clusters of scenarios, given scenario id -> cluster. A scenario without one is a cluster of its own."""
        return cls.of([(cluster is None, cluster or scenario) for scenario, cluster in clusters.items()])

    @property
    def single(self) -> bool:
        """Whether every cluster has only one scenario."""
        return all(size == 1 for size in self.sizes)

    @property
    def effective(self) -> float:
        """The number of clusters of equal size with as much information: n^2 / sum of size^2 (Kish 1965)."""
        return sum(self.sizes) ** 2 / sum(size**2 for size in self.sizes)

    def totals(self, values: Floats) -> Floats:
        """Returns the sum of the values in each cluster. Values have the shape (..., scenarios), sums (..., clusters)."""
        import numpy as np

        if self.single:
            return values
        order = np.argsort(self.codes, kind="stable")
        starts = np.concatenate(([0], np.cumsum(self.sizes)[:-1]))
        return np.asarray(np.add.reduceat(values[..., order], starts, axis=-1))


@dataclass(frozen=True)
class Bounds:
    """A mean and its interval, for one sample or many. The arrays have the shape of the values without the last axis."""

    mean: Floats
    low: Floats
    high: Floats
    error: Floats  # standard error; from `bounded_mean` it includes the imaginary scenarios
    degrees: float  # degrees of freedom of Student's t


def bounded_mean(values: Floats, clusters: Clusters, limits: tuple[float, float], confidence: float = 0.95) -> Bounds:
    """Returns the mean of values within limits, one per scenario (..., n), with a two-sided interval that imaginary scenarios widen."""
    import numpy as np

    totals = clusters.totals(values)
    centre, error = adjusted(
        totals.sum(-1), (totals**2).sum(-1), (totals * np.asarray(clusters.sizes)).sum(-1), clusters, limits, confidence
    )
    reach = student_t_quantile((1 + confidence) / 2, clusters.effective - 1) * error
    return Bounds(
        values.mean(-1), np.maximum(centre - reach, limits[0]), np.minimum(centre + reach, limits[1]), error, clusters.effective - 1
    )


def adjusted(
    total: Number, squares: Number, products: Number, clusters: Clusters, limits: tuple[float, float], confidence: float
) -> tuple[Number, Number]:
    """Returns the centre and the standard error of the interval that `bounded_mean` computes with imaginary scenarios.

    The arguments are sums over clusters: of a cluster's total, of the total squared (`squares`), and of total x size (`products`).

    The imaginary scenarios are whole clusters whose size is the mean, over scenarios, of the size of their cluster. The standard error is
    cluster-robust (Liang and Zeger 1986, with C/(C - 1)), and t has one degree of freedom less than the number of effective clusters.
    Raises ValueError for a single cluster.
    """
    effective = clusters.effective
    if effective <= 1:
        raise ValueError("an interval needs at least two clusters, but all scenarios are in one; divide them into more clusters")
    low, high = limits
    n, weight = len(clusters.codes), imaginary(confidence)
    size = n / effective
    everything = n + 2 * weight * size
    centre = (total + weight * size * (low + high)) / everything
    variation = squares - 2 * centre * products + centre**2 * n * size
    variation = variation + weight * size**2 * ((low - centre) ** 2 + (high - centre) ** 2)
    count = effective + 2 * weight
    return centre, (variation * count / (count - 1)) ** 0.5 / everything


def imaginary(confidence: float) -> float:
    """Returns how many imaginary scenarios, or clusters, are added at each end of the range of the values to widen an interval.

    It need not be a whole number.
    """
    return IMAGINARY * normal_quantile((1 + confidence) / 2) ** 2


# A standard error below _ROUNDING, relative to the largest value but at least to _SMALLEST, is a rounding error.
_ROUNDING, _SMALLEST = 1e-9, 1e-6


def robust_mean(values: Floats, clusters: Clusters, confidence: float = 0.95) -> Bounds:
    """Returns the mean of values (..., scenarios) with a cluster-robust interval. Needs at least two clusters.

    Without clusters, it is the interval of Student's t. The method is by Bell and McCaffrey 2002, and Pustejovsky and Tipton 2018, arXiv
    1601.01981. For a mean with clusters of n_g of the n scenarios:

    - variance = n^-2 sum over clusters of (sum of residuals)^2 / (1 - n_g / n)
    - degrees of freedom = tr(P)^2 / tr(P^2), P_gh = a_g a_h (n_g [g = h] - n_g n_h / n), a_g = (1 - n_g / n)^-0.5
    """
    import numpy as np

    sizes = np.asarray(clusters.sizes, dtype=np.float64)
    n = sizes.sum()
    mean = values.mean(-1)
    residuals = clusters.totals(values) - mean[..., None] * sizes
    error = np.sqrt((residuals**2 / (1 - sizes / n)).sum(-1)) / n
    inflation = (1 - sizes / n) ** -0.5
    pattern = np.outer(inflation, inflation) * (np.diag(sizes) - np.outer(sizes, sizes) / n)
    degrees = float(np.trace(pattern) ** 2 / (pattern**2).sum())
    reach = student_t_quantile((1 + confidence) / 2, degrees) * error
    return Bounds(mean, mean - reach, mean + reach, error, degrees)


def is_constant(bounds: Bounds, values: Floats) -> Floats:
    """Returns an array (...) of whether the values do not vary. A constant sample does not prove certainty."""
    import numpy as np

    return np.asarray(bounds.error <= _ROUNDING * np.maximum(np.abs(values).max(-1), _SMALLEST))


RESAMPLES = 4999  # With this number, the quantiles of 95 % are whole ranks
_AT_ONCE = 2_000_000  # limit on the numbers in memory at a time
_NEGLIGIBLE = 1e-9  # standard error, relative to the largest value, below which it is a rounding error


@dataclass(frozen=True)
class BootstrapMean:
    """A mean with its bootstrap interval."""

    estimate: float
    low: float
    high: float
    error: float  # standard error


def percentile_t(
    values: Floats, clusters: Clusters, confidence: float = 0.95, seed: int = 0, resamples: int = RESAMPLES
) -> BootstrapMean | None:
    """Returns the mean of n values without limits, with its bootstrap-t interval (Efron and Tibshirani 1993, 12.5).

    Resamples consist of whole clusters. This is the only bootstrap method that keeps its coverage for skewed values and few scenarios
    (benchmarks/verdict-results.md). BCa and plain percentiles are too narrow there.

    Returns None if the mean has no interval: the values do not vary, or so few of them do that too many resamples consist of equal values
    only. Their standard error is 0, so an end of the interval would be infinite.
    """
    import numpy as np

    sizes = np.asarray(clusters.sizes, dtype=np.float64)
    totals = clusters.totals(values)
    count = len(sizes)
    mean, error = _ratio(totals[None, :], sizes[None, :])
    if count < 2 or error[0] <= _NEGLIGIBLE * np.abs(values).max():
        return None
    generator = np.random.default_rng(seed)
    studentised = []
    for size in _batches(resamples, count):
        drawn = generator.integers(0, count, (size, count))
        means, errors = _ratio(totals[drawn], sizes[drawn])
        with np.errstate(divide="ignore", invalid="ignore"):
            distance = (means - mean[0]) / errors
        studentised.append(np.nan_to_num(distance, nan=0.0, posinf=np.inf, neginf=-np.inf))
    everything = np.sort(np.concatenate(studentised))
    outside = (1 - confidence) / 2
    low, high = everything[_rank(outside, resamples)], everything[-1 - _rank(outside, resamples)]
    if not np.isfinite([low, high]).all():
        return None
    return BootstrapMean(float(mean[0]), float(mean[0] - high * error[0]), float(mean[0] - low * error[0]), float(error[0]))


def _ratio(totals: Floats, sizes: Floats) -> tuple[Floats, Floats]:
    """Returns the mean and the cluster-robust standard error of each sample.

    `totals` and `sizes` are those of its clusters: arrays (samples, clusters).
    """
    import numpy as np

    count, n = totals.shape[-1], sizes.sum(-1)
    mean = totals.sum(-1) / n
    deviations = totals - mean[:, None] * sizes
    return mean, np.sqrt((deviations**2).sum(-1) * count / (count - 1)) / n


def _rank(outside: float, resamples: int) -> int:
    """Returns how many resamples lie beyond each end of the interval. Each end is a resample (Efron and Tibshirani, 12.5)."""
    return max(0, int((resamples + 1) * outside + 1e-9) - 1)


def _batches(resamples: int, width: int) -> list[int]:
    size = max(1, _AT_ONCE // width)
    return [min(size, resamples - start) for start in range(0, resamples, size)]


def mcnemar(worse: int, better: int) -> float:
    """Returns the one-sided p-value of "the new run is worse" for pairs with one trial each.

    `worse` pairs passed before and fail now, `better` pairs failed before and pass now. The p-value is
    P(X >= worse) for X ~ Binomial(worse + better, 1/2) (McNemar 1947); 1 if no pair differs.
    """
    if worse < 0 or better < 0:
        raise ValueError(f"the numbers of pairs must be 0 or more, not {min(worse, better)}")
    pairs = worse + better
    return sum(math.comb(pairs, x) for x in range(worse, pairs + 1)) / (1 << pairs)


@functools.lru_cache(maxsize=4096)
def tango_interval(worse: int, better: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Returns the interval of P(better) - P(worse) for n pairs with one trial each (Tango 1998, Statistics in Medicine 17:891, formula 13).

    The interval can be asymmetric. It is not a point if no pair differs, but -+ z^2 / (n + z^2).
    """
    if n < 1 or worse < 0 or better < 0 or worse + better > n or not 0 < confidence < 1:
        raise ValueError(
            f"the numbers of pairs that are worse ({worse}) and better ({better}) must be 0 or more and together at most n ({n}), "
            f"n at least 1, and the confidence ({confidence}) between 0 and 1"
        )
    z = normal_quantile((1 + confidence) / 2)
    observed = (better - worse) / n
    score = functools.partial(_tango_score, worse, better, n)
    low = _crossing(lambda delta: score(delta) > z, -1.0, observed)
    high = _crossing(lambda delta: score(delta) >= -z, observed, 1.0)
    return low, high


def _tango_score(worse: int, better: int, n: int, delta: float) -> float:
    """Returns by how many standard errors the observed difference P(better) - P(worse) exceeds `delta`.

    The standard error is computed with the likeliest probabilities whose difference is `delta`.
    """
    linear = -better - worse + (2 * n - better + worse) * delta
    rest = -worse * delta * (1 - delta)
    likeliest = (math.sqrt(max(linear**2 - 8 * n * rest, 0.0)) - linear) / (4 * n)  # P(worse)
    variance = n * (2 * likeliest + delta * (1 - delta))
    distance = better - worse - n * delta
    if variance <= 0:
        return 0.0 if distance == 0 else math.copysign(math.inf, distance)
    return distance / math.sqrt(variance)


def _crossing(above: Callable[[float], bool], low: float, high: float) -> float:
    """Returns where a predicate that is true at `low` becomes false, by bisection to 1e-12."""
    while high - low > 1e-12:
        middle = (low + high) / 2
        low, high = (middle, high) if above(middle) else (low, middle)
    return (low + high) / 2


@functools.lru_cache(maxsize=4096)
def binomial_interval(passed: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Returns the exact interval of a pass rate, which is rather too wide (Clopper and Pearson 1934, Biometrika 26:404)."""
    if not 0 <= passed <= trials or trials < 1 or not 0 < confidence < 1:
        raise ValueError(
            f"the number of passed trials ({passed}) must be from 0 to that of all trials ({trials}), which must be at least 1, "
            f"and the confidence ({confidence}) between 0 and 1"
        )
    tail = (1 - confidence) / 2
    low = _crossing(lambda rate: 1 - binomial_at_most(passed - 1, trials, rate) < tail, 0.0, 1.0) if passed else 0.0
    high = _crossing(lambda rate: binomial_at_most(passed, trials, rate) >= tail, 0.0, 1.0) if passed < trials else 1.0
    return low, high


def wilson_interval(rate: float, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Returns the interval of a pass rate by Wilson (1927, JASA 22:209), narrower than the exact one and right on average over rates.

    The rate need not correspond to a whole number of trials: it can be the mean of questions that were asked several times each.
    """
    if not 0 <= rate <= 1 or trials < 1 or not 0 < confidence < 1:
        raise ValueError(
            f"the rate ({rate}) must be from 0 to 1, the number of trials ({trials}) at least 1, "
            f"and the confidence ({confidence}) between 0 and 1"
        )
    z = normal_quantile((1 + confidence) / 2)
    middle, weight = rate + z**2 / (2 * trials), 1 + z**2 / trials
    reach = z * math.sqrt(rate * (1 - rate) / trials + z**2 / (4 * trials**2))
    return max(0.0, (middle - reach) / weight), min(1.0, (middle + reach) / weight)
