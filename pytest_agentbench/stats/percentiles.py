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
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain, repeat
from typing import TYPE_CHECKING, TypeVar, overload

from pytest_agentbench.records import Json
from pytest_agentbench.stats.special import binomial_at_most

if TYPE_CHECKING:
    from pytest_agentbench.stats.bounded import Floats

HIGH = (50, 90, 95, 99)  # percentiles of what is better small: latencies
LOW = (50, 10, 5, 1)  # of what is better large: rates
CONFIDENCE = 0.95
INFINITE = "inf"  # how JSON says it

Count = TypeVar("Count", float, "Floats")


def numbers() -> array[float]:
    """Room for many numbers, eight bytes each."""
    return array("d")


def series() -> defaultdict[str, array[float]]:
    """Name -> its numbers."""
    return defaultdict(numbers)


class Pool(Sequence[float]):
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


def spread(values: Iterable[float], levels: Sequence[int] = HIGH) -> Json | None:
    """Mean, percentiles with their 95 % intervals, and the worst value, or None of nothing. A percentile of too few values is None."""
    ordered = _ordered(values)
    if not ordered:
        return None
    mean = ordered.mean if isinstance(ordered, Pool) else math.fsum(ordered) / len(ordered)
    enclosing = {q: ranks(len(ordered), q) for q in levels}
    return {
        "n": len(ordered),
        "mean": mean,
        **{f"p{q}": _interpolated(ordered, q) if len(ordered) >= needed(q) else None for q in levels},
        **({"max": ordered[-1]} if levels == HIGH else {"min": ordered[0]}),
        "intervals": {f"p{q}": [ordered[rank] for rank in pair] if pair else None for q, pair in enclosing.items()},
    }


def adjusted(values: Sequence[float], failed: int) -> Json | None:
    """Percentiles with each failed call as an infinite latency, so that a server which drops its slow calls gains nothing.

    None without a failed call: nothing to adjust.
    """
    if not failed:
        return None
    ordered = [*chain(sorted(values), repeat(math.inf, failed))]
    found = {q: _interpolated(ordered, q) if len(ordered) >= needed(q) else None for q in HIGH}
    return {"n": len(ordered), "failed": failed, **{f"p{q}": INFINITE if value == math.inf else value for q, value in found.items()}}


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
    return values if isinstance(values, Pool) else sorted(values)


def _interpolated(ordered: Sequence[float], q: float) -> float:
    place = position(len(ordered), q)
    below, above = ordered[math.floor(place)], ordered[math.ceil(place)]
    return below if below == above else below + (above - below) * (place - math.floor(place))
