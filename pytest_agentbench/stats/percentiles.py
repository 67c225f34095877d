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
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, repeat
from typing import TYPE_CHECKING, TypeVar, overload

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


def numbers() -> array[float]:
    """Room for many numbers, eight bytes each."""
    return array("d")


def series() -> defaultdict[str, array[float]]:
    """Name -> its numbers."""
    return defaultdict(numbers)


class Distribution(Sequence[float]):
    """Milliseconds in ascending order, to the microsecond: each value that occurred, and how often.

    Millions of gaps take the memory of the different ones among them, which is tens of thousands.
    """

    def __init__(self, values_ns: Iterable[int] = ()) -> None:
        self._counts: Counter[int] = Counter()  # microseconds -> values
        self._values: list[int] = []
        self._ends: list[int] = []  # how many values are as small as this one, or smaller
        self.add(values_ns)

    def add(self, values_ns: Iterable[int]) -> None:
        self._counts.update((value + 500) // 1000 for value in values_ns)
        self._values = []

    def __len__(self) -> int:
        return self._counts.total()

    @overload
    def __getitem__(self, index: int) -> float: ...
    @overload
    def __getitem__(self, index: slice) -> list[float]: ...
    def __getitem__(self, index: int | slice) -> float | list[float]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        if not self._values:
            self._values = sorted(self._counts)
            self._ends = [*accumulate(map(self._counts.__getitem__, self._values))]
        place = range(len(self))[index]  # raises IndexError as a list does
        return self._values[bisect_right(self._ends, place)] / 1e3

    @property
    def mean(self) -> float | None:
        """Milliseconds; None of nothing."""
        return sum(value * count for value, count in self._counts.items()) / 1e3 / len(self) if self._counts else None


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
    return _interpolated(ordered, q) if ordered else None


def tail(ordered: Sequence[float]) -> float | None:
    """p99 of values in ascending order, and the greatest of them where they are too few for that; None of nothing."""
    if not ordered:
        return None
    return _interpolated(ordered, 99) if len(ordered) >= needed(99) else ordered[-1]


def latency_spread(values: Iterable[float]) -> LatencySpread | None:
    """Of what is better small; None of nothing. A percentile of too few values is None."""
    ordered = _ordered(values)
    if not ordered:
        return None
    p90, p95, p99 = (_told(ordered, q) for q in HIGH[1:])
    return LatencySpread(*_common(ordered, HIGH), p90=p90, p95=p95, p99=p99)


def rate_spread(values: Iterable[float]) -> RateSpread | None:
    """The same of what is better large."""
    ordered = _ordered(values)
    if not ordered:
        return None
    p10, p5, p1 = (_told(ordered, q) for q in LOW[1:])
    return RateSpread(*_common(ordered, LOW), p10=p10, p5=p5, p1=p1)


def _common(
    ordered: Sequence[float], levels: Sequence[int]
) -> tuple[int, float, float, float, float, dict[str, tuple[float, float] | None]]:
    """Number, mean, median, least, greatest and intervals of values in ascending order."""
    mean = ordered.mean if isinstance(ordered, Distribution) else math.fsum(ordered) / len(ordered)
    enclosing = {q: ranks(len(ordered), q) for q in levels}
    intervals = {f"p{q}": (ordered[pair[0]], ordered[pair[1]]) if pair else None for q, pair in enclosing.items()}
    return len(ordered), mean or 0.0, _interpolated(ordered, 50), ordered[0], ordered[-1], intervals


def _told(ordered: Sequence[float], q: int) -> float | None:
    """A percentile of values in ascending order; None of too few."""
    return _interpolated(ordered, q) if len(ordered) >= needed(q) else None


def adjusted(values: Sequence[float], failed: int) -> AdjustedSpread | None:
    """Percentiles with each failed call as an infinite latency, so that a server which drops its slow calls gains nothing.

    None without a failed call: nothing to adjust.
    """
    if not failed:
        return None
    ordered = [*chain(sorted(values), repeat(math.inf, failed))]
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
    return values if isinstance(values, Distribution) else sorted(values)


def _interpolated(ordered: Sequence[float], q: float) -> float:
    place = position(len(ordered), q)
    below, above = ordered[math.floor(place)], ordered[math.ceil(place)]
    return below if below == above else below + (above - below) * (place - math.floor(place))
