"""Decisions about several metrics and many scenarios at once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_agentbench.stats.decisions import RANKED, Suspect, benjamini_hochberg, fall_p_value, overall, suspects


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        (["PASS", "PASS"], "PASS"),
        (["PASS", "INCONCLUSIVE"], "INCONCLUSIVE"),
        (["INCONCLUSIVE", "FAIL", "PASS"], "FAIL"),
        ([], "INCONCLUSIVE"),
    ],
)
def test_all_metrics_have_to_pass(verdicts: list[str], expected: str) -> None:
    """One FAIL makes the overall verdict FAIL. Otherwise one INCONCLUSIVE, or no verdict at all, makes it INCONCLUSIVE."""
    assert expected == overall(verdicts)


def test_benjamini_hochberg() -> None:
    """The Benjamini-Hochberg procedure lists a p-value if its adjusted value is at most the rate. scipy adjusts these to .025, .05, .05,
    .025, .2.
    """
    p_values = [0.01, 0.04, 0.03, 0.005, 0.2]

    assert [True, False, False, True, False] == benjamini_hochberg(p_values, 0.03)
    assert [True, True, True, True, False] == benjamini_hochberg(p_values, 0.051)
    assert [] == benjamini_hochberg([])
    with pytest.raises(ValueError, match=r"p-value 1\.5 must be from 0 to 1"):
        benjamini_hochberg([0.1, 1.5])


@given(st.lists(st.floats(0, 1), max_size=30), st.floats(0.01, 0.5))
def test_benjamini_hochberg_lists_the_lowest_p_values(p_values: list[float], rate: float) -> None:
    """Listed p-values are lower than the others, include those of Bonferroni's method, and are not above the rate."""
    listed = benjamini_hochberg(p_values, rate)
    inside = [p for p, keep in zip(p_values, listed, strict=True) if keep]
    outside = [p for p, keep in zip(p_values, listed, strict=True) if not keep]

    assert max(inside, default=0.0) <= min(outside, default=1.0)
    assert all(p <= rate for p in inside)
    assert all(p > rate / len(p_values) for p in outside)


@pytest.mark.parametrize(
    ("new", "base", "trials", "p"),  # scipy.stats.fisher_exact, alternative="less"
    [(1, 5, 5, 0.0238095), (2, 5, 5, 0.0833333), (0, 3, 3, 0.05), (4, 8, 8, 0.0384615), (3, 4, 6, 0.5)],
)
def test_passes_and_failures_use_fishers_test(new: int, base: int, trials: int, p: float) -> None:
    """For trials that pass or fail, the p-value is that of Fisher's exact test. Five of five before and one of five now give 0.024."""
    assert p == pytest.approx(fall_p_value([1.0] * new + [0.0] * (trials - new), [1.0] * base + [0.0] * (trials - base)), abs=1e-6)


def test_other_scores_use_a_permutation_test() -> None:
    """For other scores, the p-value equals that of scipy.stats.permutation_test for the difference of means, with alternative="less"."""
    assert 0.05714285714285714 == pytest.approx(fall_p_value([0.2, 0.5, 0.4], [0.6, 0.5, 0.9, 0.7]))


def test_many_trials_are_sampled() -> None:
    """Beyond 20,000 permutations, a seeded sample of them is used. Its p-value is never 0."""
    assert 1 / 20_001 == fall_p_value([0.0] * 20, [1.0] * 20)
    assert 1.0 == fall_p_value([], [1.0])


def test_claims() -> None:
    """With at least five trials in each run, scenarios that fell are claimed, by p-value. Scenarios of one run are left out."""
    new = {"fell": [0.0] * 5, "same": [1.0] * 5, "less": [1.0, 0.0, 0.0, 0.0, 0.0], "new": [0.0] * 5, "lost": []}
    base = {"fell": [1.0] * 5, "same": [1.0] * 5, "less": [1.0] * 5, "lost": [1.0] * 5}

    assert [Suspect("fell", 1.0, 0.0, 1 / 252, True), Suspect("less", 1.0, 0.2, 6 / 252, True)] == suspects(new, base)
    assert ["fell"] == [each.scenario for each in suspects(new, base, rate=0.02)]


@pytest.mark.parametrize(("ours", "theirs"), [(1, 1), (4, 4), (4, 15), (15, 4)])
def test_few_trials_give_a_ranking(ours: int, theirs: int) -> None:
    """With few trials, nothing is claimed. The ten scenarios that fell most are ranked."""
    new = {f"{at:02}": [at / 100] * ours for at in range(60)} | {"same": [0.5] * ours, "rose": [0.6] * ours}
    base = {name: [0.5] * theirs for name in new}

    found = suspects(new, base)

    assert RANKED == len(found)
    assert [f"{at:02}" for at in range(RANKED)] == [each.scenario for each in found]
    assert not any(each.claimed for each in found)


def test_a_scenario_that_lost_a_trial_is_ranked_behind_the_claims() -> None:
    """A scenario with few trials does not affect the claims about others."""
    new = {"a": [0.0] * 4, "b": [0.0] * 5, "c": [1.0] * 5}
    base = {name: [1.0] * 5 for name in new}

    assert [("b", True), ("a", False)] == [(each.scenario, each.claimed) for each in suspects(new, base)]


@pytest.mark.parametrize(("broken", "least"), [(0, 0.0), (5, 0.9), (10, 0.9)])
def test_one_claim_in_ten_is_wrong(broken: int, least: float) -> None:
    """With five trials of 100 scenarios, at most a tenth of the claims is false on average, and most broken scenarios are claimed."""
    random, runs = np.random.default_rng(broken), 60
    rates = random.beta(2.4, 0.6, 100)
    rates[:broken] = 1.0
    after = np.where(np.arange(100) < broken, 0.0, rates)
    wrong = right = 0.0
    for _ in range(runs):
        new, base = (
            {str(at): random.binomial(1, rate, 5).astype(float).tolist() for at, rate in enumerate(each)} for each in (after, rates)
        )
        claims = {int(each.scenario) for each in suspects(new, base)}
        wrong += sum(at >= broken for at in claims) / max(1, len(claims)) / runs
        right += sum(at < broken for at in claims) / max(1, broken) / runs

    assert wrong <= 0.1 + 3 * (0.1 * 0.9 / runs) ** 0.5
    assert right >= least


@settings(max_examples=50)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=6), st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_p_values_are_probabilities(new: list[float], base: list[float]) -> None:
    """A p-value is between 0 and 1. The p-values of both directions sum to at least 1."""
    assert 0 < fall_p_value(new, base) <= 1
    assert fall_p_value(new, base) + fall_p_value(base, new) >= 1 - 1e-9
