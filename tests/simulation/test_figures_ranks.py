"""Ranks of simulated settings."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_agentbench.simulation.figures import LEAST, change, distance, gap, percentage, ranks, spread

POSITIVE = st.floats(0.001, 1e6)
VALUES = st.lists(POSITIVE, min_size=1, max_size=8)


def test_ranks_need_a_difference_above_the_tolerance() -> None:
    """A rank counts the settings that are better by more than the tolerance: 100 and 110 share a rank, 300 comes after both."""
    assert [1, 1, 3] == ranks([100.0, 110.0, 300.0], math.log(1.2))
    assert [3, 2, 1] == ranks([100.0, 150.0, 300.0], math.log(1.2), rising=True)
    assert [1, 1, 1] == ranks([100.0, 110.0, 300.0], math.log(4))
    assert [2, 1] == ranks([0.5, 0.9], 0.3, rising=True, share=True)


def test_distance_from_the_measured_interval() -> None:
    """A simulation that equals the median has the error of the median's interval, and at least LEAST."""
    assert math.log(2) == pytest.approx(distance(100, 100, (50, 120)))
    assert LEAST == distance(100, 100)
    assert 0.1 == pytest.approx(distance(0.8, 0.7, share=True))


def test_ratios_of_zero() -> None:
    """A value that is zero only once has an infinite distance, which ranks nothing. Two zeros are equal."""
    assert math.inf == gap(0, 5, share=False)
    assert 0 == gap(0, 0, share=False)
    assert [1, 1] == ranks([0.0, 5.0], math.inf)
    assert "beyond any ratio" == percentage(math.inf, share=False)


@given(VALUES, st.floats(0, 20))
def test_nothing_is_ranked_below_the_tolerance(values: list[float], tolerance: float) -> None:
    """There is a second rank only if the settings differ by more than the tolerance."""
    assert (spread(values, share=False) > tolerance) == (max(ranks(values, tolerance)) > 1)


@given(VALUES, st.floats(0, 5), st.floats(0, 5))
def test_a_greater_tolerance_separates_less(values: list[float], one: float, other: float) -> None:
    """With a greater tolerance no rank gets worse, and the best setting is always first."""
    fine, coarse = ranks(values, min(one, other)), ranks(values, max(one, other))

    assert all(rough <= sharp for rough, sharp in zip(coarse, fine, strict=True))
    assert 1 == fine[values.index(min(values))]


@given(VALUES, st.floats(0, 5))
def test_ranks_follow_the_numbers(values: list[float], tolerance: float) -> None:
    """No setting has a lower rank than a worse one."""
    placed = sorted(zip(values, ranks(values, tolerance), strict=True))

    assert [place for _, place in placed] == sorted(place for _, place in placed)


@pytest.mark.parametrize(
    ("words", "simulated", "measured", "share"),
    [("+32 %", 132, 100, False), ("-0.004", 0.97, 0.974, True), ("measured nothing", 5, 0, False)],
)
def test_words_for_a_change(words: str, simulated: float, measured: float, share: bool) -> None:
    """Ratios are printed as percentages, shares as differences."""
    assert words == change(simulated, measured, share=share)
