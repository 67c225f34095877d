"""Levels of interim looks, against published boundaries and simulated error rates."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_agentbench.stats.decisions import FIRST_LOOK, MOST_ROUNDS, InterimLooks, critical_values, spent
from pytest_agentbench.stats.quantiles import normal_quantile


@pytest.mark.parametrize(
    "published",
    [(2.9626, 1.9686), (3.7103, 2.5114, 1.9930), (4.3326, 2.9631, 2.3590, 2.0141), (4.8769, 3.3569, 2.6803, 2.2898, 2.0310)],
    ids=len,
)
def test_published_boundaries(published: tuple[float, ...]) -> None:
    """For equally spaced looks, one-sided 2.5 %, the boundaries are those in the tables of Reboussin, DeMets, Kim and Lan (2000).

    They use the spending function of O'Brien and Fleming.
    """
    shares = tuple((look + 1) / len(published) for look in range(len(published)))

    assert critical_values(shares, 0.025) == pytest.approx(published, abs=2e-4)


def test_the_spent_risk() -> None:
    """Almost none of the risk is spent at first, and all of it at the end."""
    assert 0.025 == pytest.approx(spent(1.0, 0.025))
    assert spent(0.25, 0.025) < 1e-4
    shares = [spent(share / 10, 0.025) for share in range(1, 11)]
    assert shares == sorted(shares)


@pytest.mark.parametrize("base_trials", [0.0, 1.0, 5.0, 15.0])
def test_all_looks_together_are_as_wrong_as_one(base_trials: float) -> None:
    """While trials are added, 2.5 % of unchanged runs are beyond the boundary at any look."""
    looks, random, runs = InterimLooks(5, base_trials), np.random.default_rng(1), 200_000
    base = random.normal(0, base_trials**-0.5, runs) if base_trials else np.zeros(runs)
    trials, beyond = random.normal(size=(runs, 5)), np.zeros(runs, bool)
    for rounds in range(FIRST_LOOK, 6):
        error = (1 / rounds + (1 / base_trials if base_trials else 0)) ** 0.5
        bound = normal_quantile((1 + looks.confidence(rounds, 0.95)) / 2)
        beyond |= (trials[:, :rounds].mean(-1) - base) / error > bound

    assert 0.025 == pytest.approx(beyond.mean(), abs=0.0011)


@pytest.mark.slow
@settings(max_examples=25)
@given(st.integers(FIRST_LOOK, MOST_ROUNDS), st.one_of(st.just(0.0), st.floats(1, 100)), st.sampled_from([0.95, 0.975, 0.99]))
def test_later_looks_need_less_confidence(most: int, base_trials: float, confidence: float) -> None:
    """For any number of rounds and baseline trials, early looks need more than late ones, and none needs less than a single look."""
    levels = [InterimLooks(most, base_trials).confidence(rounds, confidence) for rounds in range(FIRST_LOOK, most + 1)]

    assert levels == sorted(levels, reverse=True)
    assert all(confidence - 1e-9 <= level < 1 for level in levels)


def test_a_single_look() -> None:
    """With two rounds there is one look with the whole level. A run that ended before it is judged as at that look."""
    assert 0.95 == pytest.approx(InterimLooks(2, 3.0).confidence(2, 0.95))
    assert InterimLooks(5, 5.0).confidence(2, 0.95) == InterimLooks(5, 5.0).confidence(0, 0.95)
    assert 2.745 == pytest.approx(normal_quantile((1 + InterimLooks(5, 5.0).confidence(2, 0.95)) / 2), abs=1e-3)
