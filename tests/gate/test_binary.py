"""Trials that pass or fail, against published tables."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_agentbench.gate.binary import mcnemar, pass_all, pass_at, passes, tango_interval


@pytest.mark.parametrize(
    ("worse", "better", "p"), [(5, 0, 0.03125), (6, 1, 0.0625), (10, 4, 0.1795654296875 / 2), (0, 0, 1.0), (0, 3, 1.0)]
)
def test_mcnemar(worse: int, better: int, p: float) -> None:
    """Binomial tails; (10, 4) is half of statsmodels' two-sided exact p-value."""
    assert p == mcnemar(worse, better)


def test_tango_of_the_literature() -> None:
    """Airway hyper-responsiveness, 7 against 1 of 21 (Fagerland, Lydersen and Laake 2014, Stat. Med. 33:2850): -0.517 to -0.026."""
    assert (-0.517, -0.026) == pytest.approx(tango_interval(7, 1, 21), abs=5e-4)


@pytest.mark.parametrize("n", [1, 20, 300])
def test_tango_without_a_difference(n: int) -> None:
    """No pair differs: -+ z^2 / (n + z^2), no point."""
    reach = 1.959963984540054**2 / (n + 1.959963984540054**2)

    assert (-reach, reach) == pytest.approx(tango_interval(0, 0, n), abs=1e-9)


@settings(deadline=None, max_examples=100)
@given(n=st.integers(1, 60), data=st.data())
def test_tango_properties(n: int, data: st.DataObject) -> None:
    """Around the estimate, within -1 to 1, mirrored when the runs change places, wider with more confidence."""
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
def test_tables_that_cannot_be(worse: int, better: int, n: int, confidence: float) -> None:
    """More differences than pairs, and the like, are refused."""
    with pytest.raises(ValueError, match="no interval of"):
        tango_interval(worse, better, n, confidence)


def test_negative_pairs_are_refused() -> None:
    """A count is not negative."""
    with pytest.raises(ValueError, match="-1 pairs"):
        mcnemar(-1, 3)


@settings(deadline=None)
@given(trials=st.lists(st.booleans(), min_size=1, max_size=8), k=st.integers(1, 8))
def test_passes_are_the_shares_of_all_choices(trials: list[bool], k: int) -> None:
    """pass@k is the share of ways to choose k trials in which one passes, pass^k that in which all do; too few trials have neither."""
    ways = [*combinations(trials, k)]
    at = sum(any(way) for way in ways) / len(ways) if ways else None
    every = sum(all(way) for way in ways) / len(ways) if ways else None

    assert at == pytest.approx(pass_at(sum(trials), len(trials), k))
    assert every == pytest.approx(pass_all(sum(trials), len(trials), k))


def test_passes_of_a_suite() -> None:
    """Means over scenarios; a scenario with fewer than k measured trials is counted apart, not as passed or failed."""
    found = passes({"a": [True, True, True], "b": [True, False, False], "c": [True], "d": []}, 2)

    assert (2, 2, 2) == (found.at.n, found.all.n, found.too_few)
    assert ((1 + 2 / 3) / 2, 0.5) == pytest.approx((found.at.mean, found.all.mean))


def test_impossible_counts_are_refused() -> None:
    """More passes than trials."""
    with pytest.raises(ValueError, match="4 of 3 trials passed"):
        pass_at(4, 3, 1)
