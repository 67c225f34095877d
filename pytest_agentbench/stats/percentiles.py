"""Percentiles that say how far they can be trusted. Pure functions on numbers, without scipy.

A percentile needs values beyond it: of n values, n x (1 - q) are expected to lie above the q-th percentile, and where that is less
than one, what is printed as p99 is the maximum in disguise. So the q-th percentile needs 1 / (1 - q) values: 10 for p90, 20 for p95,
100 for p99. The median is no tail; it needs one.
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
from typing import TYPE_CHECKING, TypeGuard, TypeVar, cast

from pytest_agentbench.stats.arrays import unknown
from pytest_agentbench.stats.special import binomial_at_most

if TYPE_CHECKING:
    from pytest_agentbench.stats.arrays import Floats

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
    p90, p95, p99 = (_told(ordered, q) for q in HIGH[1:])
    return LatencySpread(*_common(ordered, HIGH), p90=p90, p95=p95, p99=p99)


def rate_spread(values: Iterable[float]) -> RateSpread | None:
    """The same of what is better large."""
    ordered = _ordered(values)
    if not len(ordered):
        return None
    p10, p5, p1 = (_told(ordered, q) for q in LOW[1:])
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


def _told(ordered: Sequence[float], q: int) -> float | None:
    """A percentile of values in ascending order; None of too few."""
    return _interpolated(ordered, q) if len(ordered) >= needed(q) else None


def adjusted(values: Iterable[float], failed: int) -> AdjustedSpread | None:
    """Percentiles with each failed call as an infinite latency, so that a server which drops its slow calls gains nothing.

    None without a failed call: nothing to adjust.
    """
    if not failed:
        return None
    ordered = [*map(float, _ordered(values)), *repeat(math.inf, failed)]
    known = (_told(ordered, q) for q in HIGH)
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
