"""Quantiles and tail probabilities of distributions, and percentiles of measured values with their intervals.

The functions do without scipy, which would add 142 MiB for five functions (docs/why/decisions.md). Tests check them against it.

A percentile needs values beyond it. n x (1 - q) of n values are expected above the q-th percentile. If that is less than one, the
printed p99 is really the maximum. So the q-th percentile needs 1 / (1 - q) values: 10 for p90, 20 for p95, 100 for p99. The median is not
a tail and needs one value.
"""

from __future__ import annotations

import functools
import math
from array import array
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from statistics import NormalDist
from typing import TYPE_CHECKING, TypeGuard, TypeVar, cast

from pytest_agentbench.stats.series import unknown

if TYPE_CHECKING:
    from pytest_agentbench.stats.series import Floats


_STEPS, _CLOSE = 1000, 1e-10  # limit on steps, and relative tolerance, of Newton's method
_NORMAL = 1e7  # degrees of freedom above which t is treated as normal
_EXACT = 16  # number of t quantiles up to which each is solved exactly
_NODES = 200  # number of nodes between which more t quantiles are interpolated


def normal_quantile(p: float) -> float:
    """Returns the p-quantile of the standard normal distribution."""
    return NormalDist().inv_cdf(p)


def binomial_at_most(k: int, n: int, p: float) -> float:
    """Returns P(X <= k) for X ~ Binomial(n, p), as I_{1-p}(n - k, k + 1) (DLMF 8.17.5)."""
    if k < 0 or p >= 1:
        return 0.0 if k < n else 1.0
    return 1.0 if k >= n or p <= 0 else incomplete_beta(n - k, k + 1, 1 - p)


def student_t_quantiles(p: float, degrees: Floats) -> Floats:
    """Returns `student_t_quantile` for an array of degrees of freedom, each at least 1. The relative error is 1e-4 for large arrays."""
    import numpy as np

    if degrees.size <= _EXACT:
        return np.array([student_t_quantile(p, float(each)) for each in degrees.ravel()]).reshape(degrees.shape)
    nodes, values = _table(p)
    return np.asarray(np.interp(1 / degrees, nodes, values))


@functools.cache
def _table(p: float) -> tuple[Floats, Floats]:
    """Returns nodes for interpolating quantiles of Student's t: 1 / degrees in ascending order, and the quantiles at these."""
    import numpy as np

    nodes = np.linspace(0, 1, _NODES) ** 2
    return nodes, np.array([normal_quantile(p), *(student_t_quantile(p, 1 / node) for node in nodes[1:])])


@functools.lru_cache(maxsize=4096)
def student_t_quantile(p: float, degrees: float) -> float:
    """Returns the p-quantile of Student's t with these degrees of freedom. The relative error is 1e-6.

    It uses Newton's method on P(T <= t) = 1 - I_x(degrees / 2, 1 / 2) / 2 at x = degrees / (degrees + t^2) (DLMF 8.17). It begins at the
    normal quantile, which is lower, and always stays below the solution, because the distribution function is concave there.
    """
    if not 0 < p < 1 or degrees <= 0:
        raise ValueError(f"Student's t needs 0 < p < 1 and degrees of freedom above 0, not p = {p} and {degrees} degrees of freedom")
    if degrees > _NORMAL:
        return normal_quantile(p)
    if p < 0.5:
        return -student_t_quantile(1 - p, degrees)
    density = math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2) - math.log(degrees * math.pi) / 2
    t = normal_quantile(p)
    for _ in range(_STEPS):
        beyond = incomplete_beta(degrees / 2, 0.5, degrees / (degrees + t * t)) / 2 if t > 0 else 0.5
        step = (p - 1 + beyond) / math.exp(density - (degrees + 1) / 2 * math.log1p(t * t / degrees))
        t += step
        if abs(step) <= _CLOSE * t:
            break
    return t


def incomplete_beta(a: float, b: float, x: float) -> float:
    """Returns the regularised incomplete beta function I_x(a, b), for 0 < x < 1."""
    if x > (a + 1) / (a + b + 2):  # The continued fraction converges fast below this value, and by symmetry above it
        return 1 - _incomplete_beta(b, a, 1 - x)
    return _incomplete_beta(a, b, x)


def _incomplete_beta(a: float, b: float, x: float) -> float:
    logarithm = a * math.log(x) + b * math.log1p(-x) + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    return math.exp(logarithm) / (a * _beta_fraction(a, b, x))


def _beta_fraction(a: float, b: float, x: float) -> float:
    """Returns the continued fraction 1 + d1/(1 + d2/(1 + ...)) of DLMF 8.17.22, by Lentz's method."""
    value, numerator, denominator = 1.0, 1.0, 0.0
    for step in range(1, 100_000):
        m = step // 2
        if step % 2:
            term = -x * (a + m) * (a + b + m) / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            term = x * m * (b - m) / ((a + 2 * m - 1) * (a + 2 * m))
        numerator = 1 + term / numerator
        denominator = 1 / (1 + term * denominator)
        value *= numerator * denominator
        if abs(numerator * denominator - 1) < 1e-15:
            return value
    raise ArithmeticError(f"the incomplete beta function does not converge for a={a}, b={b}, x={x}")


HIGH = (50, 90, 95, 99)  # percentiles of latencies, for which lower is better
LOW = (50, 10, 5, 1)  # percentiles of rates, for which higher is better
CONFIDENCE = 0.95
INFINITE = "inf"  # infinity in JSON

Count = TypeVar("Count", float, "Floats")


@dataclass(frozen=True)
class Percentiles:
    """Mean, median and percentiles of values, with intervals."""

    n: int  # number of values: calls, gaps, or rollouts
    mean: float
    p50: float  # median
    min: float
    max: float
    intervals: Mapping[str, tuple[float, float] | None]  # 95 % [intervals](metrics.md#percentiles-and-their-intervals) of percentiles


@dataclass(frozen=True, kw_only=True)
class LatencySpread(Percentiles):
    """Percentiles of values for which lower is better."""

    p90: float | None  # null for fewer than 10 values
    p95: float | None  # null for fewer than 20 values
    p99: float | None  # null for fewer than 100 values


@dataclass(frozen=True, kw_only=True)
class RateSpread(Percentiles):
    """Percentiles of values for which higher is better."""

    p10: float | None  # null for fewer than 10 values
    p5: float | None  # null for fewer than 20 values
    p1: float | None  # null for fewer than 100 values


@dataclass(frozen=True)
class AdjustedSpread:
    """Percentiles of latencies if each failed call counts as infinitely slow, which is `"inf"` in JSON."""

    n: int  # number of calls, including failed ones
    failed: int  # number of failed calls
    p50: float | str | None  # `"inf"` if it falls among the failed calls
    p90: float | str | None  # null for fewer than 10 calls
    p95: float | str | None  # null for fewer than 20 calls
    p99: float | str | None  # null for fewer than 100 calls


def series() -> defaultdict[str, array[float]]:
    """Returns an empty mapping of names to arrays of numbers, with eight bytes for each number."""
    return defaultdict(lambda: array("d"))


def needed(q: int) -> int:
    """Returns the number of values that the q-th percentile needs."""
    return 1 if q == 50 else -(-100 // min(q, 100 - q))


def position(count: Count, q: float) -> Count:
    """Returns the position of the q-th percentile (0 to 100) among `count` ordered values, from 0. A fraction means interpolation.

    Reports, A/B and gates use this definition: linear, numpy's default (Hyndman and Fan 1996, definition 7).
    """
    return (count - 1) * q / 100


def percentile(values: Iterable[float], q: float) -> float | None:
    """Returns the q-th percentile (0 to 100) by linear interpolation (numpy's default), or None without values.

    Infinite values are allowed. It does not check whether there are enough values (`needed`).
    """
    if not 0 <= q <= 100:
        raise ValueError(f"percentile {q} must be from 0 to 100")
    ordered = _ordered(values)
    return _interpolated(ordered, q) if len(ordered) else None


def tail(values: Iterable[float]) -> float | None:
    """Returns p99 of values, or their maximum if they are too few for p99, or None without values."""
    ordered = _ordered(values)
    if not len(ordered):
        return None
    return _interpolated(ordered, 99) if len(ordered) >= needed(99) else float(ordered[-1])


def latency_spread(values: Iterable[float]) -> LatencySpread | None:
    """Returns the percentiles of values for which lower is better, or None without values. A percentile of too few values is None."""
    ordered = _ordered(values)
    if not len(ordered):
        return None
    p90, p95, p99 = (_if_enough(ordered, q) for q in HIGH[1:])
    return LatencySpread(*_common(ordered, HIGH), p90=p90, p95=p95, p99=p99)


def rate_spread(values: Iterable[float]) -> RateSpread | None:
    """Returns the percentiles of values for which higher is better, or None without values. A percentile of too few values is None."""
    ordered = _ordered(values)
    if not len(ordered):
        return None
    p10, p5, p1 = (_if_enough(ordered, q) for q in LOW[1:])
    return RateSpread(*_common(ordered, LOW), p10=p10, p5=p5, p1=p1)


def _common(
    ordered: Sequence[float], levels: Sequence[int]
) -> tuple[int, float, float, float, float, dict[str, tuple[float, float] | None]]:
    """Returns number, mean, median, least and greatest of values in ascending order, and intervals of the percentiles `levels`."""
    enclosing = {q: ranks(len(ordered), q) for q in levels}
    intervals = {f"p{q}": (float(ordered[pair[0]]), float(ordered[pair[1]])) if pair else None for q, pair in enclosing.items()}
    return len(ordered), _mean(ordered), _interpolated(ordered, 50), float(ordered[0]), float(ordered[-1]), intervals


def _mean(values: Sequence[float]) -> float:
    """Returns the mean: of an array by numpy's pairwise sum, of other values by an exact sum."""
    return float(values.mean()) if _is_array(values) else math.fsum(values) / len(values)


def _if_enough(ordered: Sequence[float], q: int) -> float | None:
    """Returns a percentile of values in ascending order, or None if there are too few."""
    return _interpolated(ordered, q) if len(ordered) >= needed(q) else None


def adjusted(values: Iterable[float], failed: int) -> AdjustedSpread | None:
    """Returns percentiles with each failed call as an infinite latency, so a server gains nothing by dropping slow calls.

    Returns None if no call failed, because nothing has to be adjusted.
    """
    if not failed:
        return None
    ordered = [*map(float, _ordered(values)), *repeat(math.inf, failed)]
    known = (_if_enough(ordered, q) for q in HIGH)
    return AdjustedSpread(len(ordered), failed, *(INFINITE if value == math.inf else value for value in known))


@functools.lru_cache(maxsize=1024)
def ranks(n: int, q: int) -> tuple[int, int] | None:
    """Returns which of n ordered values (from 0) enclose the true q-th percentile with 95 % confidence, whatever the distribution.

    B ~ Binomial(n, q) of n independent values lie below the true percentile, so [X(l), X(u)] (counted from 1) misses it with probability
    P(B < l) + P(B >= u). Each of the two is at most 2.5 % here (David and Nagaraja, Order Statistics, 3rd ed., 7.1). Returns None if there
    are too few values for such an interval: the median needs 6 values, p90 36, p95 72, p99 368.

    The confidence holds for independent values. It is lower for calls of one scenario and gaps of one stream, which are not independent.
    """
    error = (1 - CONFIDENCE) / 2
    low = bisect_right(range(n), error, key=lambda k: binomial_at_most(k, n, q / 100))  # the greatest l with P(B < l) <= error
    high = bisect_left(range(n), 1 - error, key=lambda k: binomial_at_most(k, n, q / 100)) + 1  # the least u with P(B >= u) <= error
    return (low - 1, high - 1) if low >= 1 and high <= n else None


def _ordered(values: Iterable[float]) -> Sequence[float]:
    """Returns values in ascending order. An array stays an array, and loses its unknown values (NaN)."""
    if not _is_array(values):
        return sorted(values)
    known = values[~unknown(values)]
    known.sort()
    return cast("Sequence[float]", known)


def _is_array(values: Iterable[float]) -> TypeGuard[Floats]:
    return hasattr(values, "dtype")


def _interpolated(ordered: Sequence[float], q: float) -> float:
    place = position(len(ordered), q)
    below, above = float(ordered[math.floor(place)]), float(ordered[math.ceil(place)])
    return below if below == above else below + (above - below) * (place - math.floor(place))
