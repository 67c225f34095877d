"""Intervals of means: of scores within a range, of clusters, of values without limits, and of trials that pass or fail.

Scores that cannot leave a range have intervals which hold where Student's t does not: near 0 and 1, and without variation. Twenty
scenarios of which none changed have no variation, and t makes certainty of it. Here the data are joined by imaginary scenarios, some at
either end of the range, as Agresti and Coull (1998) do for a proportion and Bonett and Price (2012) for a paired difference of
proportions; then comes the usual t interval. `benchmarks/verdict-results.md` shows what that costs and what it saves.
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
#: Wilson's interval), Bonett and Price 0.26 (one). With 0.4 a suite that breaks in whole scenarios, which is the worst case because
#: trials do not help against it, passes wrongly with probability 1 - confidence at most; with 0.26 more (test_mean_intervals_bounded.py).
IMAGINARY = 0.4

#: Effective clusters below which nothing is decided. "Few" begins between 20 and 50 clusters of equal size (Cameron and Miller 2015,
#: J. Human Resources 50(2), VI) for normal quantiles; with those of t for the effective number the table holds from 10.
FEWEST_CLUSTERS = 10


@dataclass(frozen=True)
class Clusters:
    """Which scenarios belong together. Without clusters each scenario is its own."""

    codes: tuple[int, ...]  # of each scenario, from 0
    sizes: tuple[int, ...]  # scenarios of each cluster

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
        """Of scenarios by their ids, in this order; one that names no cluster is one of its own."""
        return cls.of([(cluster is None, cluster or scenario) for scenario, cluster in clusters.items()])

    @property
    def single(self) -> bool:
        return all(size == 1 for size in self.sizes)

    @property
    def effective(self) -> float:
        """How many clusters of equal size tell as much: n^2 / sum of size^2 (Kish 1965)."""
        return sum(self.sizes) ** 2 / sum(size**2 for size in self.sizes)

    def totals(self, values: Floats) -> Floats:
        """(..., scenarios) -> (..., clusters): the sum of each cluster."""
        import numpy as np

        if self.single:
            return values
        order = np.argsort(self.codes, kind="stable")
        starts = np.concatenate(([0], np.cumsum(self.sizes)[:-1]))
        return np.asarray(np.add.reduceat(values[..., order], starts, axis=-1))


@dataclass(frozen=True)
class Bounds:
    """A mean and its interval, for one sample or for many at once; arrays have the shape of the values without the last axis."""

    mean: Floats
    low: Floats
    high: Floats
    error: Floats  # standard error; of `bounded_mean` with the imaginary scenarios
    degrees: float  # of Student's t


def bounded_mean(values: Floats, clusters: Clusters, limits: tuple[float, float], confidence: float = 0.95) -> Bounds:
    """The mean of one value per scenario, (..., n) of them within the limits, and a two-sided interval for it. See `adjusted`."""
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
    """Centre and standard error of the interval, from sums over clusters: of their totals, those squared, and total x size.

    The imaginary scenarios are whole clusters of the size that a scenario finds itself in on average, the standard error is cluster-robust
    (Liang and Zeger 1986, with C/(C - 1)), and t has one degree less than there are effective clusters.
    Raises ValueError for a single cluster.
    """
    effective = clusters.effective
    if effective <= 1:
        raise ValueError(f"{effective:.3g} effective clusters have no interval")
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
    """How many imaginary scenarios join at either end of the range."""
    return IMAGINARY * normal_quantile((1 + confidence) / 2) ** 2


_ROUNDING, _SMALLEST = 1e-9, 1e-6  # relative to the largest value, if it is no rounding itself: a standard error below this is rounding


def robust_mean(values: Floats, clusters: Clusters, confidence: float = 0.95) -> Bounds:
    """Of (..., scenarios), two clusters at least (Bell and McCaffrey 2002; Pustejovsky and Tipton 2018, arXiv 1601.01981).

    For a mean: V = n^-2 sum over clusters of (sum of residuals)^2 / (1 - n_g / n), and tr(P)^2 / tr(P^2) degrees of freedom with
    P_gh = a_g a_h (n_g [g = h] - n_g n_h / n), a_g = (1 - n_g / n)^-0.5. Without clusters that is Student's t.
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
    """Whether nothing varies, which proves no certainty; (...)."""
    import numpy as np

    return np.asarray(bounds.error <= _ROUNDING * np.maximum(np.abs(values).max(-1), _SMALLEST))


RESAMPLES = 4999  # the quantiles of 95 % are then whole ranks
_AT_ONCE = 2_000_000  # numbers in memory at a time
_NEGLIGIBLE = 1e-9  # a standard error below this, relative to the largest value, is rounding


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
    """The mean of n values without limits, and its bootstrap-t interval (Efron and Tibshirani 1993, 12.5; clusters are drawn whole).

    Of the bootstraps this is the one that keeps its promise for skewed values and few scenarios (benchmarks/verdict-results.md); BCa and
    plain percentiles are too narrow there. None where nothing bounds the mean: the values do not vary, or so few of them that resamples
    without any of these, whose error is 0, reach into the interval.
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
    """Mean and cluster-robust standard error of each row of (samples, clusters)."""
    import numpy as np

    count, n = totals.shape[-1], sizes.sum(-1)
    mean = totals.sum(-1) / n
    deviations = totals - mean[:, None] * sizes
    return mean, np.sqrt((deviations**2).sum(-1) * count / (count - 1)) / n


def _rank(outside: float, resamples: int) -> int:
    """How many of the ordered resamples lie outside on either side: the (B + 1) x outside-th is the bound (Efron and Tibshirani, 12.5)."""
    return max(0, int((resamples + 1) * outside + 1e-9) - 1)


def _batches(resamples: int, width: int) -> list[int]:
    size = max(1, _AT_ONCE // width)
    return [min(size, resamples - start) for start in range(0, resamples, size)]


def mcnemar(worse: int, better: int) -> float:
    """One-sided p-value of "the new one is worse", of pairs that passed before and fail now, and the other way round; one trial each.

    P(X >= worse) for X ~ Binomial(worse + better, 1/2) (McNemar 1947); 1 if no pair differs.
    """
    if worse < 0 or better < 0:
        raise ValueError(f"there are no {min(worse, better)} pairs")
    pairs = worse + better
    return sum(math.comb(pairs, x) for x in range(worse, pairs + 1)) / (1 << pairs)


@functools.lru_cache(maxsize=4096)
def tango_interval(worse: int, better: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Interval for P(better) - P(worse) of n pairs with one trial on each side (Tango 1998, Statistics in Medicine 17:891, formula 13).

    Asymmetric where it has to be, and no point without pairs that differ: it is then -+ z^2 / (n + z^2).
    """
    if n < 1 or worse < 0 or better < 0 or worse + better > n or not 0 < confidence < 1:
        raise ValueError(f"no interval of {worse} worse and {better} better of {n} pairs with confidence {confidence}")
    z = normal_quantile((1 + confidence) / 2)
    observed = (better - worse) / n
    score = functools.partial(_tango_score, worse, better, n)
    low = _crossing(lambda delta: score(delta) > z, -1.0, observed)
    high = _crossing(lambda delta: score(delta) >= -z, observed, 1.0)
    return low, high


def _tango_score(worse: int, better: int, n: int, delta: float) -> float:
    """How many standard errors the observed difference lies above delta; the variance is that of the likeliest table with this delta."""
    linear = -better - worse + (2 * n - better + worse) * delta
    rest = -worse * delta * (1 - delta)
    likeliest = (math.sqrt(max(linear**2 - 8 * n * rest, 0.0)) - linear) / (4 * n)  # P(worse)
    variance = n * (2 * likeliest + delta * (1 - delta))
    distance = better - worse - n * delta
    if variance <= 0:
        return 0.0 if distance == 0 else math.copysign(math.inf, distance)
    return distance / math.sqrt(variance)


def _crossing(above: Callable[[float], bool], low: float, high: float) -> float:
    """Where a predicate that holds at first ends to hold, by bisection to 1e-12."""
    while high - low > 1e-12:
        middle = (low + high) / 2
        low, high = (middle, high) if above(middle) else (low, middle)
    return (low + high) / 2


@functools.lru_cache(maxsize=4096)
def binomial_interval(passed: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Interval for the rate of trials that pass, exact and so rather too wide (Clopper and Pearson 1934, Biometrika 26:404)."""
    if not 0 <= passed <= trials or trials < 1 or not 0 < confidence < 1:
        raise ValueError(f"no interval of {passed} of {trials} trials with confidence {confidence}")
    tail = (1 - confidence) / 2
    low = _crossing(lambda rate: 1 - binomial_at_most(passed - 1, trials, rate) < tail, 0.0, 1.0) if passed else 0.0
    high = _crossing(lambda rate: binomial_at_most(passed, trials, rate) >= tail, 0.0, 1.0) if passed < trials else 1.0
    return low, high


def wilson_interval(rate: float, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Interval for the rate of trials that pass, right on average over rates (Wilson 1927, JASA 22:209), and narrower than the exact one.

    The rate need not be a whole number of trials: it may be the mean of questions that were asked several times each.
    """
    if not 0 <= rate <= 1 or trials < 1 or not 0 < confidence < 1:
        raise ValueError(f"no interval of the rate {rate} of {trials} trials with confidence {confidence}")
    z = normal_quantile((1 + confidence) / 2)
    middle, weight = rate + z**2 / (2 * trials), 1 + z**2 / trials
    reach = z * math.sqrt(rate * (1 - rate) / trials + z**2 / (4 * trials**2))
    return max(0.0, (middle - reach) / weight), min(1.0, (middle + reach) / weight)
