"""Percentiles, the number of values that they need, and their intervals."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_agentbench.lib.codec import plain
from pytest_agentbench.metrics.frame import milliseconds
from pytest_agentbench.stats.quantiles import (
    HIGH,
    LOW,
    AdjustedSpread,
    LatencySpread,
    adjusted,
    latency_spread,
    needed,
    percentile,
    ranks,
    rate_spread,
    tail,
)


def test_percentiles_interpolate_linearly() -> None:
    """Percentiles of 200, 100 and 300 ms are those of numpy."""
    values = [200.0, 100.0, 300.0]

    assert [200.0, 280.0, 290.0, 298.0] == [percentile(values, q) for q in (50, 90, 95, 99)]
    assert (100.0, 300.0) == (percentile(values, 0), percentile(values, 100))
    assert 7.0 == percentile([7.0], 99)
    assert percentile([], 50) is None


def test_percentiles_of_infinite_values() -> None:
    """Failures may be given as infinite latencies: finite percentiles stay finite, the others are infinite, none is NaN."""
    values = [1.0, 2.0, 3.0, math.inf, math.inf]

    assert [2.0, 3.0, math.inf, math.inf] == [percentile(values, q) for q in (25, 50, 60, 100)]


@pytest.mark.parametrize("q", [-1, 101, math.nan])
def test_a_percentile_beyond_100_is_a_mistake(q: float) -> None:
    """Quantiles given as a percentage, or the other way round, do not pass silently."""
    with pytest.raises(ValueError, match="must be from 0 to 100"):
        percentile([1.0], q)


def test_the_values_that_percentiles_need() -> None:
    """At least one value has to be expected beyond a percentile, on the side of its tail."""
    assert {50: 1, 90: 10, 95: 20, 99: 100} == {q: needed(q) for q in HIGH}
    assert {50: 1, 10: 10, 5: 20, 1: 100} == {q: needed(q) for q in LOW}


def test_spread() -> None:
    """Too few values have no percentile, but always a number, a mean, a minimum and a maximum."""
    found = latency_spread([4.0, 1.0, 3.0, 2.0, 5.0])
    ten = latency_spread(map(float, range(10, 0, -1)))

    assert found is not None and ten is not None
    nothing = dict.fromkeys(("p50", "p90", "p95", "p99"))
    assert LatencySpread(5, 3.0, 3.0, 1.0, 5.0, nothing, p90=None, p95=None, p99=None) == found
    assert (9.1, None) == (ten.p90, ten.p95)
    assert (2.0, 9.0) == ten.intervals["p50"]
    assert latency_spread([]) is None
    assert rate_spread([]) is None


def test_spread_of_rates() -> None:
    """If higher is better, the tail is the low one."""
    found = rate_spread(map(float, range(1, 102)))

    assert found is not None
    assert (51.0, 11.0, 6.0, 2.0, 1.0) == (found.p50, found.p10, found.p5, found.p1, found.min)


def test_adjusted() -> None:
    """Each failed call counts as infinite. A percentile among them is the string "inf", which JSON can represent."""
    assert adjusted([1.0], 0) is None
    assert AdjustedSpread(10, 2, 5.5, "inf", None, None) == adjusted([*map(float, range(8, 0, -1))], 2)
    assert '{"n": 1, "failed": 1, "p50": "inf", "p90": null, "p95": null, "p99": null}' == json.dumps(
        plain(adjusted([], 1)), allow_nan=False
    )


def test_the_tail() -> None:
    """The tail is p99, or the maximum of fewer than a hundred values."""
    hundred = [*map(float, range(100))]

    assert (98.01, 98.0, None) == (tail(hundred), tail(hundred[:99]), tail([]))


@pytest.mark.parametrize(("q", "least"), [(50, 6), (90, 36), (95, 72), (99, 368)])
def test_intervals_need_values(q: int, least: int) -> None:
    """If there are fewer values, not even the whole range is an interval, because q^n or (1 - q)^n is more than 2.5 %."""
    assert ranks(least - 1, q) is None
    found = ranks(least, q)

    assert found is not None
    assert least - 1 == found[1]


def test_known_intervals() -> None:
    """The ranks are those in tables of order statistics: for 100 values, the 40th and the 61st are around the median."""
    assert (39, 60) == ranks(100, 50)
    assert (0, 5) == ranks(6, 50)


def binomial(n: int, p: float) -> list[float]:
    return [math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1)]


@given(n=st.integers(2, 500), q=st.sampled_from([1, 5, 10, 50, 90, 95, 99]))
def test_intervals_keep_their_promise(n: int, q: int) -> None:
    """Each side of an interval misses with a probability of at most 2.5 % by the binomial distribution.

    The next rank inwards would miss with more.
    """
    probabilities, found = binomial(n, q / 100), ranks(n, q)

    if found is None:
        assert probabilities[0] > 0.025 or probabilities[n] > 0.025
    else:
        low, high = found[0] + 1, found[1] + 1
        assert math.fsum(probabilities[:low]) <= 0.025 + 1e-12 < math.fsum(probabilities[: low + 1]) + 2e-12
        assert math.fsum(probabilities[high:]) <= 0.025 + 1e-12 < math.fsum(probabilities[high - 1 :]) + 2e-12


def test_intervals_cover() -> None:
    """At least 95 % (within chance) of 2000 samples of a skewed distribution have an interval that contains the true median."""
    chance = random.Random(7)
    found = [latency_spread([chance.expovariate(1) for _ in range(40)]) for _ in range(2000)]
    covered = sum(low <= math.log(2) <= high for low, high in (each.intervals["p50"] or (0, 0) for each in found if each))

    assert 0.94 <= covered / 2000 <= 0.99


def test_large_numbers() -> None:
    """Millions of values have narrow intervals."""
    found = ranks(5_000_000, 99)

    assert found is not None
    assert (4_949_564, 4_950_436) == pytest.approx(found, abs=2)


@given(st.lists(st.integers(0, 10**10), min_size=1, max_size=60))
def test_an_array_is_a_sorted_list(values: list[int]) -> None:
    """An array of durations has the same spreads and percentiles as a list of them, to the microsecond."""
    array, rounded = milliseconds(np.array(values)), [(value + 500) // 1000 / 1e3 for value in values]

    assert rounded == array.tolist()
    one, other = latency_spread(array), latency_spread(rounded)
    assert one is not None and other is not None
    assert pytest.approx(other.mean) == one.mean
    assert replace(other, mean=one.mean) == one
    assert [percentile(rounded, q) for q in HIGH] == [percentile(array, q) for q in HIGH]
    assert (tail(rounded), adjusted(rounded, 2)) == (tail(array), adjusted(array, 2))
    assert rounded == array.tolist(), "it is left as it is"


def test_unknown_values_of_an_array() -> None:
    """Unknown values (NaN) do not count."""
    some, none = np.array([math.nan, 3.0, 1.0, math.nan]), np.array([math.nan])

    assert latency_spread([1.0, 3.0]) == latency_spread(some)
    assert rate_spread([1.0, 3.0]) == rate_spread(some)
    assert (2.0, 3.0, adjusted([1.0, 3.0], 1)) == (percentile(some, 50), tail(some), adjusted(some, 1))
    assert [None] * 4 == [latency_spread(none), rate_spread(none), percentile(none, 50), tail(none)]
