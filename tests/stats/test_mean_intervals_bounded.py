"""The adjusted interval of a bounded mean: never a point, correct in its worst case, and equal for one sample and for many."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_agentbench.stats import mean_intervals
from pytest_agentbench.stats.mean_intervals import Clusters, bounded_mean, imaginary
from pytest_agentbench.stats.quantiles import binomial_at_most

DIFFERENCES = (-1.0, 1.0)


def single(n: int) -> Clusters:
    return Clusters.of(range(n))


def worst_wrong_pass(n: int, confidence: float) -> float:
    """Returns the greatest P(PASS) at any margin up to 0.8, if each scenario of a suite breaks with the margin's probability.

    With `broken` scenarios the bound is low(broken), so P(PASS) is greatest just above margin = -low(broken), where it is P(X <= broken).
    """
    samples = np.array([[-1.0] * broken + [0.0] * (n - broken) for broken in range(n)])
    margins = -bounded_mean(samples, single(n), DIFFERENCES, confidence).low
    wrong = (binomial_at_most(broken, n, margin) for broken, margin in enumerate(margins.tolist()) if margin <= 0.8)
    return max(wrong, default=0.0)


@pytest.mark.parametrize(("confidence", "promise"), [(0.9, 0.1), (0.95, 0.05), (0.99, 0.0125)])
@pytest.mark.parametrize("n", [5, 20, 50, 100, 300])
def test_whole_scenarios_that_break_are_passed_as_rarely_as_promised(n: int, confidence: float, promise: float) -> None:
    """A suite that breaks by the margin never passes more often than 1 - confidence. The calculation is exact, without simulation."""
    assert worst_wrong_pass(n, confidence) <= promise


def test_fewer_imaginary_scenarios_would_break_the_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the single imaginary scenario of Bonett and Price, 6 % pass wrongly, and without any nearly all.

    This shows that the previous test can fail.
    """
    monkeypatch.setattr(mean_intervals, "IMAGINARY", 0.26)
    assert worst_wrong_pass(100, 0.95) > 0.06
    monkeypatch.setattr(mean_intervals, "IMAGINARY", 0.0)
    assert worst_wrong_pass(100, 0.95) > 0.9


def test_a_calculation_by_hand() -> None:
    """The interval of two scenarios and 2w imaginary ones equals a t interval that is calculated by hand."""
    weight = imaginary(0.95)
    found = bounded_mean(np.array([0.2, 0.6]), single(2), (0.0, 1.0))
    total = 2 + 2 * weight
    centre = (0.8 + weight) / total
    squares = (0.2 - centre) ** 2 + (0.6 - centre) ** 2 + weight * (centre**2 + (1 - centre) ** 2)

    assert 0.4 * 1.959963984540054**2 == pytest.approx(weight)
    assert math.sqrt(squares / (total * (total - 1))) == pytest.approx(float(found.error))
    assert (0.4, 0.0, 1.0, 1) == pytest.approx((float(found.mean), float(found.low), float(found.high), found.degrees))


def test_no_change_has_an_interval() -> None:
    """A hundred scenarios without a change prove that fewer than 3.4 in 100 broke. The rule of three gives 3, at 95 % one-sided."""
    found = bounded_mean(np.zeros(100), single(100), DIFFERENCES)

    assert (-0.0339, 0.0339) == pytest.approx((float(found.low), float(found.high)), abs=5e-5)


def test_a_perfect_suite_is_judged_as_wilson_would() -> None:
    """For 20 of 20, Wilson's 95 % interval begins at 0.839 (scipy) and that of Clopper and Pearson at 0.832.

    The adjusted interval begins a little lower.
    """
    found = bounded_mean(np.ones(20), single(20), (0.0, 1.0))

    assert 0.80 < float(found.low) < 0.839
    assert 1.0 == float(found.high)


def test_perfect_clusters_are_worth_one_scenario_each() -> None:
    """20 clusters of 5 equal scenarios have the interval of 20 scenarios."""
    values = np.linspace(0, 1, 20)
    alone = bounded_mean(values, single(20), (0.0, 1.0))
    together = bounded_mean(np.repeat(values, 5), Clusters.of([i // 5 for i in range(100)]), (0.0, 1.0))

    assert (float(alone.low), float(alone.high)) == pytest.approx((float(together.low), float(together.high)))


def test_clustered_error_of_statsmodels() -> None:
    """Without imaginary scenarios and the factor C/(C - 1), the error equals the robust error of statsmodels' OLS with
    cov_type="cluster".
    """
    values, clusters = np.array([0.2, 0.4, 0.6, 0.9, 0.1, 0.3, 0.5]), Clusters.of([0, 0, 1, 1, 2, 2, 2])
    totals = clusters.totals(values) - values.mean() * np.asarray(clusters.sizes)

    assert 0.11322393 == pytest.approx(math.sqrt((totals**2).sum()) / 7, rel=1e-7)


def test_unequal_clusters_by_hand() -> None:
    """Two scenarios in one cluster and one in another count as 1.8 effective clusters of 5/3, with imaginary clusters of that size."""
    found = bounded_mean(np.array([0.2, 0.6, 0.4]), Clusters.of("aab"), (0.0, 1.0))
    weight, size = imaginary(0.95), 5 / 3
    total, count = 3 + 2 * weight * size, 1.8 + 2 * weight
    centre = (1.2 + weight * size) / total
    squares = (0.8 - 2 * centre) ** 2 + (0.4 - centre) ** 2 + weight * size**2 * (centre**2 + (1 - centre) ** 2)

    assert (math.sqrt(squares * count / (count - 1)) / total, 0.8) == pytest.approx((float(found.error), found.degrees))


def test_unequal_clusters_are_worth_less() -> None:
    """One cluster of 17 and three of one count as 1.37 clusters of equal size."""
    assert 400 / 292 == pytest.approx(Clusters.of([0] * 17 + [1, 2, 3]).effective)
    assert 4 == Clusters.of("aabbccdd").effective


def test_one_cluster_has_no_interval() -> None:
    """Scenarios in a single cluster are one observation, which has no interval."""
    with pytest.raises(ValueError, match="at least two clusters, but all scenarios are in one"):
        bounded_mean(np.zeros(5), Clusters.of("aaaaa"), DIFFERENCES)


@settings(max_examples=150)
@given(
    scores=st.lists(st.tuples(st.floats(-1, 1), st.integers(0, 5)), min_size=3, max_size=40),
    clustered=st.booleans(),
)
def test_properties(scores: list[tuple[float, int]], clustered: bool) -> None:
    """The interval is within the limits, contains the mean, is never a point, widens with confidence, and mirrors with the scores."""
    values = np.array([value for value, _ in scores])
    clusters = Clusters.of([cluster for _, cluster in scores] if clustered else range(len(scores)))
    if clusters.effective < 2:
        return
    found, surer, mirrored = (
        bounded_mean(values, clusters, DIFFERENCES),
        bounded_mean(values, clusters, DIFFERENCES, 0.99),
        bounded_mean(-values, clusters, DIFFERENCES),
    )

    assert -1 <= found.low < found.high <= 1
    assert found.low - 1e-9 <= found.mean <= found.high + 1e-9
    assert surer.low <= found.low + 1e-9 and found.high <= surer.high + 1e-9
    assert (-float(found.high), -float(found.low)) == pytest.approx((float(mirrored.low), float(mirrored.high)))


@settings(max_examples=50)
@given(st.lists(st.lists(st.floats(0, 1), min_size=6, max_size=6), min_size=1, max_size=5))
def test_many_samples_at_once(samples: list[list[float]]) -> None:
    """The interval of many samples at once, as in the benchmark, equals that of one run, as in a gate."""
    clusters = Clusters.of("abcabd")
    together = bounded_mean(np.array(samples), clusters, (0.0, 1.0))
    alone = [bounded_mean(np.array(sample), clusters, (0.0, 1.0)) for sample in samples]

    assert together.low.tolist() == pytest.approx([float(each.low) for each in alone])
    assert together.high.tolist() == pytest.approx([float(each.high) for each in alone])
