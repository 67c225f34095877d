"""Quantiles and tail probabilities of distributions, and percentiles of measured values that say how far they can be trusted.

Pure functions on numbers, without scipy, which would be a hundred megabytes for five functions; these are checked against it in tests.

A percentile needs values beyond it: of n values, n x (1 - q) are expected to lie above the q-th percentile, and where that is less than
one, what is printed as p99 is the maximum in disguise. So the q-th percentile needs 1 / (1 - q) values: 10 for p90, 20 for p95, 100 for
p99. The median is no tail; it needs one.
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


_STEPS, _CLOSE = 1000, 1e-10  # of Newton's method
_NORMAL = 1e7  # degrees of freedom from which on t is a normal distribution
_EXACT = 16  # so many quantiles of t are solved for one by one
_NODES = 200  # where more are asked for, they are read off so many


def normal_quantile(p: float) -> float:
    """The value that a standard normal variable stays below with probability p."""
    return NormalDist().inv_cdf(p)


def binomial_at_most(k: int, n: int, p: float) -> float:
    """P(X <= k) of X ~ Binomial(n, p), as I_{1-p}(n - k, k + 1) (DLMF 8.17.5)."""
    if k < 0 or p >= 1:
        return 0.0 if k < n else 1.0
    return 1.0 if k >= n or p <= 0 else incomplete_beta(n - k, k + 1, 1 - p)


def student_t_quantiles(p: float, degrees: Floats) -> Floats:
    """`student_t_quantile` of an array of degrees of freedom, 1 at least; of a large one right to 1e-4, relatively."""
    import numpy as np

    if degrees.size <= _EXACT:
        return np.array([student_t_quantile(p, float(each)) for each in degrees.ravel()]).reshape(degrees.shape)
    nodes, values = _table(p)
    return np.asarray(np.interp(1 / degrees, nodes, values))


@functools.cache
def _table(p: float) -> tuple[Floats, Floats]:
    """(1 / degrees in ascending order, quantiles): nearly a straight line."""
    import numpy as np

    nodes = np.linspace(0, 1, _NODES) ** 2
    return nodes, np.array([normal_quantile(p), *(student_t_quantile(p, 1 / node) for node in nodes[1:])])


@functools.lru_cache(maxsize=4096)
def student_t_quantile(p: float, degrees: float) -> float:
    """The value that Student's t with these degrees of freedom stays below with probability p; right to 1e-6, relatively.

    Newton's method on P(T <= t) = 1 - I_x(degrees / 2, 1 / 2) / 2 at x = degrees / (degrees + t^2) (DLMF 8.17). It begins at the normal
    quantile, which lies below, and never leaves that side, because the distribution is concave there.
    """
    if not 0 < p < 1 or degrees <= 0:
        raise ValueError(f"no quantile {p} of Student's t with {degrees} degrees of freedom")
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
    """The regularised incomplete beta function I_x(a, b), for 0 < x < 1."""
    if x > (a + 1) / (a + b + 2):  # the continued fraction converges fast below, and by symmetry above
        return 1 - _incomplete_beta(b, a, 1 - x)
    return _incomplete_beta(a, b, x)


def _incomplete_beta(a: float, b: float, x: float) -> float:
    logarithm = a * math.log(x) + b * math.log1p(-x) + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    return math.exp(logarithm) / (a * _beta_fraction(a, b, x))


def _beta_fraction(a: float, b: float, x: float) -> float:
    """1 + d1/(1 + d2/(1 + ...)) of DLMF 8.17.22, from the front by Lentz's method."""
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


HIGH = (50, 90, 95, 99)  # percentiles of what is better small: latencies
LOW = (50, 10, 5, 1)  # of what is better large: rates
CONFIDENCE = 0.95
INFINITE = "inf"  # how JSON says it

Count = TypeVar("Count", float, "Floats")


@dataclass(frozen=True)
class Percentiles:
    """Values: mean, median, and how sure each percentile is."""

    n: int  # values: calls, gaps, or rollouts
    mean: float
    p50: float  # median
    min: float
    max: float
    intervals: Mapping[str, tuple[float, float] | None]  # 95 % [intervals](metrics.md#percentiles-and-their-intervals) of percentiles


@dataclass(frozen=True, kw_only=True)
class LatencySpread(Percentiles):
    """Values of which less is better."""

    p90: float | None  # null of fewer than 10 values
    p95: float | None  # null of fewer than 20
    p99: float | None  # null of fewer than 100


@dataclass(frozen=True, kw_only=True)
class RateSpread(Percentiles):
    """Values of which more is better."""

    p10: float | None  # null of fewer than 10 values
    p5: float | None  # null of fewer than 20
    p1: float | None  # null of fewer than 100


@dataclass(frozen=True)
class AdjustedSpread:
    """Latencies with each failed call as an infinite one, which JSON says as `"inf"`."""

    n: int  # calls, failed ones included
    failed: int  # calls
    p50: float | str | None  # `"inf"` when it falls among the failed calls
    p90: float | str | None  # null of fewer than 10 calls
    p95: float | str | None  # null of fewer than 20
    p99: float | str | None  # null of fewer than 100


def series() -> defaultdict[str, array[float]]:
    """Returns name -> its numbers, which take eight bytes each."""
    return defaultdict(lambda: array("d"))


def needed(q: int) -> int:
    """How many values the q-th percentile needs."""
    return 1 if q == 50 else -(-100 // min(q, 100 - q))


def position(count: Count, q: float) -> Count:
    """Where the q-th percentile (0 to 100) of so many ordered values lies, counted from 0; between two places it is interpolated.

    The one definition of reports, A/B and gates: linear, numpy's default (Hyndman and Fan 1996, definition 7).
    """
    return (count - 1) * q / 100


def percentile(values: Iterable[float], q: float) -> float | None:
    """The q-th percentile (0 to 100) by linear interpolation, as numpy's default; None of nothing. Infinite values are allowed.

    However few the values are: `needed` says how many there should be.
    """
    if not 0 <= q <= 100:
        raise ValueError(f"a percentile is between 0 and 100, not {q}")
    ordered = _ordered(values)
    return _interpolated(ordered, q) if len(ordered) else None


def tail(values: Iterable[float]) -> float | None:
    """Returns p99 of values, and the greatest of them if they are too few for that; None of nothing."""
    ordered = _ordered(values)
    if not len(ordered):
        return None
    return _interpolated(ordered, 99) if len(ordered) >= needed(99) else float(ordered[-1])


def latency_spread(values: Iterable[float]) -> LatencySpread | None:
    """Of what is better small; None of nothing. A percentile of too few values is None."""
    ordered = _ordered(values)
    if not len(ordered):
        return None
    p90, p95, p99 = (_if_enough(ordered, q) for q in HIGH[1:])
    return LatencySpread(*_common(ordered, HIGH), p90=p90, p95=p95, p99=p99)


def rate_spread(values: Iterable[float]) -> RateSpread | None:
    """The same of what is better large."""
    ordered = _ordered(values)
    if not len(ordered):
        return None
    p10, p5, p1 = (_if_enough(ordered, q) for q in LOW[1:])
    return RateSpread(*_common(ordered, LOW), p10=p10, p5=p5, p1=p1)


def _common(
    ordered: Sequence[float], levels: Sequence[int]
) -> tuple[int, float, float, float, float, dict[str, tuple[float, float] | None]]:
    """Number, mean, median, least, greatest and intervals of values in ascending order."""
    enclosing = {q: ranks(len(ordered), q) for q in levels}
    intervals = {f"p{q}": (float(ordered[pair[0]]), float(ordered[pair[1]])) if pair else None for q, pair in enclosing.items()}
    return len(ordered), _mean(ordered), _interpolated(ordered, 50), float(ordered[0]), float(ordered[-1]), intervals


def _mean(values: Sequence[float]) -> float:
    """Returns the mean: of an array by numpy's pairwise sum, of other values by an exact sum."""
    return float(values.mean()) if _is_array(values) else math.fsum(values) / len(values)


def _if_enough(ordered: Sequence[float], q: int) -> float | None:
    """A percentile of values in ascending order; None of too few."""
    return _interpolated(ordered, q) if len(ordered) >= needed(q) else None


def adjusted(values: Iterable[float], failed: int) -> AdjustedSpread | None:
    """Percentiles with each failed call as an infinite latency, so that a server which drops its slow calls gains nothing.

    None without a failed call: nothing to adjust.
    """
    if not failed:
        return None
    ordered = [*map(float, _ordered(values)), *repeat(math.inf, failed)]
    known = (_if_enough(ordered, q) for q in HIGH)
    return AdjustedSpread(len(ordered), failed, *(INFINITE if value == math.inf else value for value in known))


@functools.lru_cache(maxsize=1024)
def ranks(n: int, q: int) -> tuple[int, int] | None:
    """Which of n ordered values (counted from 0) enclose the true q-th percentile with 95 % confidence, whatever the distribution.

    Of n independent values, B ~ Binomial(n, q) lie below the true percentile, so that [X(l), X(u)] (counted from 1) misses it with
    probability P(B < l) + P(B >= u); each of the two is at most 2.5 % here (David and Nagaraja, Order Statistics, 3rd ed., 7.1).
    None where even the least and the greatest value are not far enough out: the median needs 6 values, p90 36, p95 72, p99 368.

    The confidence is that of independent values. Calls of one scenario and gaps of one stream are not: of them it is less.
    """
    error = (1 - CONFIDENCE) / 2
    low = bisect_right(range(n), error, key=lambda k: binomial_at_most(k, n, q / 100))  # the greatest l with P(B < l) <= error
    high = bisect_left(range(n), 1 - error, key=lambda k: binomial_at_most(k, n, q / 100)) + 1  # the least u with P(B >= u) <= error
    return (low - 1, high - 1) if low >= 1 and high <= n else None


def _ordered(values: Iterable[float]) -> Sequence[float]:
    """Returns values in ascending order, those of an array as an array, without those that are not known (NaN)."""
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
