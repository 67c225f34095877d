"""Intervals of means, against published quantiles and formulas calculated by hand."""

from __future__ import annotations

import math
import random
from collections.abc import Hashable, Sequence

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from pytest_agentbench.records import LARGEST_SCORE
from pytest_agentbench.stats.mean_intervals import Clusters, bounded_mean
from pytest_agentbench.stats.means import Interval, mean_interval, scenario_means, scenarios_interval


def test_trials_are_averaged_per_scenario() -> None:
    """A scenario counts once, however many trials it has. A scenario without a measured trial does not count."""
    assert {"a": 0.5, "b": 1.0} == scenario_means({"a": [0.0, 1.0, 0.5], "b": [1.0], "c": []})


def test_t_interval() -> None:
    """For mean 0.6, standard deviation 0.2 and n = 5, the interval is 0.6 +- 2.776445 x 0.2 / sqrt(5)."""
    interval = mean_interval([0.4, 0.4, 0.6, 0.8, 0.8], limits=None)

    assert (5, "t") == (interval.n, interval.method)
    assert (0.6, 0.2 / math.sqrt(5), 0.351667, 0.848333) == pytest.approx(
        (interval.mean, interval.standard_error, interval.low, interval.high), abs=1e-6
    )


def test_the_interval_stays_within_the_limits() -> None:
    """An interval of scores from 0 to 1 ends at 1. An interval of counts may exceed 1, and so may one of scores above 1."""
    assert 1.0 == mean_interval([1.0, 1.0, 0.7]).high
    assert (mean_interval([1.0, 1.0, 0.7], limits=None).high or 0) > 1
    assert (mean_interval([1.0, 1.0, 1.4]).high or 0) > 1.4


def test_clustered_interval() -> None:
    """Two clusters of two, whose deviations sum to +-0.4, have the error sqrt(2/1 x (0.4^2 + 0.4^2)) / 4 = 0.2 and one degree of
    freedom.
    """
    interval = mean_interval([0.2, 0.4, 0.6, 0.8], clusters=["a", "a", "b", "b"], limits=None)

    assert "clustered t" == interval.method
    assert (0.2, 0.5 - 12.706205 * 0.2, 0.5 + 12.706205 * 0.2) == pytest.approx(
        (interval.standard_error, interval.low, interval.high), abs=1e-5
    )


def test_clusters_of_one_change_nothing() -> None:
    """If every scenario is a cluster of its own, the interval is the plain one."""
    values = [0.1, 0.5, 0.7, 0.9]
    plain, clustered = mean_interval(values), mean_interval(values, clusters=range(4))

    assert (plain.low, plain.high, plain.standard_error) == pytest.approx((clustered.low, clustered.high, clustered.standard_error))


@pytest.mark.parametrize(
    ("values", "clusters"),
    [([], None), ([0.7], None), ([0.7, 0.1, 0.4], ["same", "same", "same"])],
)
def test_too_few_values(values: Sequence[float], clusters: Sequence[Hashable] | None) -> None:
    """Fewer than two independent values have no interval. Without any value there is no mean."""
    interval = mean_interval(values, clusters)

    assert (None, None, None, "none") == (interval.low, interval.high, interval.standard_error, interval.method)
    assert (sum(values) / len(values) if values else None) == interval.mean


@pytest.mark.parametrize(
    ("value", "n", "low", "high"),
    [
        (1.0, 100, 0.9613, 1.0),  # Clopper and Pearson: 0.9638 of passes and failures
        (0.0, 100, 0.0, 0.0387),
        (1.0, 3, 0.0, 1.0),
        (0.5, 100, 0.4830, 0.5170),
    ],
)
def test_constant_values_have_an_interval(value: float, n: int, low: float, high: float) -> None:
    """If every trial passed, 100 scenarios prove "at least 96 %", and 3 scenarios almost nothing.

    No number of them proves "exactly 100 %".
    """
    interval = mean_interval([value] * n)

    assert "adjusted t" == interval.method
    assert (low, high) == pytest.approx((interval.low, interval.high), abs=1e-4)


def test_clusters_that_cancel_out_have_an_interval() -> None:
    """If every cluster's deviations sum to 0, the plain standard error is 0 although the scores vary.

    The interval is wide nevertheless, because 4 clusters show little.
    """
    interval = mean_interval([0.0, 1.0] * 4, clusters=[0, 0, 1, 1, 2, 2, 3, 3])

    assert (0.5, "clustered adjusted t") == (interval.mean, interval.method)
    assert interval.low is not None and interval.low < 0.2


def test_perfect_clusters_count_as_one_observation_each() -> None:
    """20 perfect scenarios in 4 equal clusters count as 4 observations, and as fewer if one cluster contains most of them."""
    alone = mean_interval([1.0] * 4)
    equal, unequal = (
        mean_interval([1.0] * 20, clusters=[cluster for cluster, size in enumerate(sizes) for _ in range(size)])
        for sizes in ([5, 5, 5, 5], [17, 1, 1, 1])
    )

    assert (alone.low, alone.standard_error) == pytest.approx((equal.low, equal.standard_error))
    assert 0.0 == unequal.low


def test_constant_values_without_limits_have_no_interval() -> None:
    """Ten rollouts with 3 repeated calls each do not bound the mean of a count."""
    assert Interval(3.0, None, None, 10, 10, None, "none") == mean_interval([3.0] * 10, limits=None)
    assert Interval(3.0, None, None, 10, 10, None, "none") == mean_interval([3.0] * 10)


@pytest.mark.parametrize(
    ("values", "clusters", "confidence", "message"),
    [
        ([0.5, math.nan], None, 0.95, "score nan must be finite"),
        ([0.5, math.inf], None, 0.95, "score inf must be finite"),
        ([0.5, 0.6], ["a"], 0.95, "2 values need a cluster each, but 1 clusters are given"),
        ([0.5, 0.6], None, 95, "confidence 95 must be between 0 and 1, such as 0.95"),
    ],
)
def test_mistakes_are_refused(values: list[float], clusters: list[str] | None, confidence: float, message: str) -> None:
    """An invalid number raises instead of leading to a verdict."""
    with pytest.raises(ValueError, match=message):
        mean_interval(values, clusters, confidence)


@settings(max_examples=100)
@given(scores=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 4)), min_size=2, max_size=40), clustered=st.booleans())
def test_reports_and_gate_have_the_same_interval(scores: list[tuple[float, int]], clustered: bool) -> None:
    """Reports print the interval that gates use, with or without clusters."""
    values = [value for value, _ in scores]
    clusters = [cluster for _, cluster in scores] if clustered else None
    assume(clusters is None or len(set(clusters)) > 1)
    printed = mean_interval(values, clusters)
    judged = bounded_mean(np.array(values), Clusters.of(clusters or range(len(values))), (0.0, 1.0))

    assert (printed.low, printed.high, printed.standard_error) == pytest.approx(
        (float(judged.low), float(judged.high), float(judged.error)), abs=1e-9
    )


@settings(max_examples=200)
@given(
    scores=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 4)), min_size=2, max_size=40),
    clustered=st.booleans(),
)
def test_an_interval_contains_its_mean_and_has_a_width(scores: list[tuple[float, int]], clustered: bool) -> None:
    """For scores in [0, 1] the interval stays there, contains the mean, is never a point and widens with confidence."""
    values = [value for value, _ in scores]
    clusters = [cluster for _, cluster in scores] if clustered else None
    assume(clusters is None or len(set(clusters)) > 1)
    usual, sure = mean_interval(values, clusters), mean_interval(values, clusters, confidence=0.99)

    assert usual.low is not None and usual.high is not None and usual.mean is not None
    assert 0 <= usual.low <= usual.mean <= usual.high <= 1
    assert usual.low < usual.high
    assert sure.low is not None and sure.high is not None
    assert sure.low <= usual.low and usual.high <= sure.high


def test_the_coverage_of_the_clustered_interval() -> None:
    """With 30 clusters of 10 equal scores, the clustered interval misses the true mean about 5 times in 100, and the plain one much more
    often.
    """
    generator = random.Random(7)
    missed = {"plain": 0, "clustered": 0}
    for _ in range(300):
        levels = [generator.random() for _ in range(30)]
        values, clusters = [level for level in levels for _ in range(10)], [i for i in range(30) for _ in range(10)]
        for name, interval in (("plain", mean_interval(values)), ("clustered", mean_interval(values, clusters))):
            missed[name] += not (interval.low or 0) <= 0.5 <= (interval.high or 0)

    assert 4 <= missed["clustered"] <= 22
    assert missed["plain"] > 100


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.lists(st.floats(-LARGEST_SCORE, LARGEST_SCORE), min_size=1, max_size=3), min_size=1),
    st.booleans(),
)
@example({"a": [0.0], "b": [0.0, 1e-81]}, False)  # the square of their variance is 0
def test_every_score_has_statistics(scores: dict[str, list[float]], clustered: bool) -> None:
    """Any scores, even the largest and the smallest numbers, have a finite mean and a finite interval."""
    interval = scenarios_interval(scores, dict.fromkeys("abc", "one") if clustered else {}, limits=None)

    assert [] == [each for each in (interval.mean, interval.low, interval.high) if each is not None and not math.isfinite(each)]
