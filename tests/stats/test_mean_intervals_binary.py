"""Intervals and tests for trials that pass or fail, against published tables."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_agentbench.stats.mean_intervals import binomial_interval, mcnemar, tango_interval, wilson_interval


@pytest.mark.parametrize(
    ("worse", "better", "p"), [(5, 0, 0.03125), (6, 1, 0.0625), (10, 4, 0.1795654296875 / 2), (0, 0, 1.0), (0, 3, 1.0)]
)
def test_mcnemar(worse: int, better: int, p: float) -> None:
    """The p-values of McNemar's test are binomial tails. The one of (10, 4) is half of the two-sided exact p-value of statsmodels."""
    assert p == mcnemar(worse, better)


def test_tango_matches_the_literature() -> None:
    """Tango's interval is -0.517 to -0.026 for airway hyper-responsiveness, 7 against 1 of 21.

    Source: Fagerland, Lydersen and Laake 2014, Stat. Med. 33:2850.
    """
    assert (-0.517, -0.026) == pytest.approx(tango_interval(7, 1, 21), abs=5e-4)


@pytest.mark.parametrize("n", [1, 20, 300])
def test_tango_without_a_difference(n: int) -> None:
    """If no pair differs, the interval is -+ z^2 / (n + z^2) instead of a point."""
    reach = 1.959963984540054**2 / (n + 1.959963984540054**2)

    assert (-reach, reach) == pytest.approx(tango_interval(0, 0, n), abs=1e-9)


@settings(max_examples=100)
@given(n=st.integers(1, 60), data=st.data())
def test_tango_properties(n: int, data: st.DataObject) -> None:
    """The interval contains the estimate, is within -1 to 1, mirrored if the runs are swapped, and wider with more confidence."""
    worse = data.draw(st.integers(0, n))
    better = data.draw(st.integers(0, n - worse))
    low, high = tango_interval(worse, better, n)
    wide = tango_interval(worse, better, n, 0.99)

    assert -1 <= low <= (better - worse) / n + 1e-9
    assert (better - worse) / n - 1e-9 <= high <= 1
    assert low < high
    assert (-high, -low) == pytest.approx(tango_interval(better, worse, n), abs=1e-9)
    assert wide[0] <= low + 1e-9 and high <= wide[1] + 1e-9


@pytest.mark.parametrize(("worse", "better", "n", "confidence"), [(1, 1, 1, 0.95), (-1, 0, 5, 0.95), (0, 0, 0, 0.95), (0, 0, 5, 95)])
def test_impossible_tables(worse: int, better: int, n: int, confidence: float) -> None:
    """Impossible tables, for example more differences than pairs, are refused."""
    with pytest.raises(ValueError, match="the numbers of pairs that are worse"):
        tango_interval(worse, better, n, confidence)


def test_negative_pairs_are_refused() -> None:
    """A negative count is refused."""
    with pytest.raises(ValueError, match="the numbers of pairs must be 0 or more, not -1"):
        mcnemar(-1, 3)


@pytest.mark.parametrize(
    ("passed", "trials", "low", "high"),
    [(0, 3, 0.0, 0.7075982), (1, 3, 0.0084038, 0.9057007), (8, 10, 0.4439045, 0.9747893), (5, 5, 0.4781763, 1.0)],
)
def test_the_interval_of_a_rate(passed: int, trials: int, low: float, high: float) -> None:
    """The interval of a rate equals scipy.stats.binomtest(passed, trials).proportion_ci(method="exact")."""
    assert (low, high) == pytest.approx(binomial_interval(passed, trials), abs=1e-6)
    with pytest.raises(ValueError, match=r"passed trials \(4\) must be from 0 to that of all trials \(3\)"):
        binomial_interval(4, 3)


@pytest.mark.parametrize(
    ("rate", "trials", "low", "high"),
    [(8 / 12, 12, 0.3906, 0.8619), (0.0, 10, 0.0, 0.2775), (1.0, 10, 0.7225, 1.0), (0.5, 1, 0.0546, 0.9454)],
)
def test_wilsons_interval(rate: float, trials: int, low: float, high: float) -> None:
    """Wilson's interval has the values of Brown, Cai and DasGupta 2001 and stays within 0 to 1.

    A single question may have a rate of 1/2.
    """
    assert [pytest.approx(low, abs=1e-4), pytest.approx(high, abs=1e-4)] == [*wilson_interval(rate, trials)]
