"""Several metrics, and many scenarios, at once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_agentbench.gate.multiple import Suspect, benjamini_hochberg, fell, overall, suspects


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
    """One FAIL fails, one INCONCLUSIVE keeps it open, and nothing gated is nothing passed."""
    assert expected == overall(verdicts)


def test_benjamini_hochberg() -> None:
    """Scipy's false_discovery_control adjusts these to .025, .05, .05, .025, .2."""
    p_values = [0.01, 0.04, 0.03, 0.005, 0.2]

    assert [True, False, False, True, False] == benjamini_hochberg(p_values, 0.03)
    assert [True, True, True, True, False] == benjamini_hochberg(p_values, 0.051)
    assert [] == benjamini_hochberg([])
    with pytest.raises(ValueError, match=r"1\.5 is not a p-value"):
        benjamini_hochberg([0.1, 1.5])


@given(st.lists(st.floats(0, 1), max_size=30), st.floats(0.01, 0.5))
def test_benjamini_hochberg_lists_from_the_surest_on(p_values: list[float], rate: float) -> None:
    """What is listed is surer than what is not; Bonferroni's are among it, and none is above the rate."""
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
def test_of_passes_and_failures_it_is_fishers_test(new: int, base: int, trials: int, p: float) -> None:
    """Five of five before and one of five now: p = 0.024."""
    assert p == pytest.approx(fell([1.0] * new + [0.0] * (trials - new), [1.0] * base + [0.0] * (trials - base)), abs=1e-6)


def test_of_other_scores_it_is_a_permutation_test() -> None:
    """scipy.stats.permutation_test of the difference of means, alternative="less"."""
    assert 0.05714285714285714 == pytest.approx(fell([0.2, 0.5, 0.4], [0.6, 0.5, 0.9, 0.7]))


def test_many_trials_are_sampled() -> None:
    """Beyond 20,000 ways a seeded sample of them decides; its p-value is never 0."""
    assert 1 / 20_001 == fell([0.0] * 20, [1.0] * 20)
    assert 1.0 == fell([], [1.0])


def test_suspects() -> None:
    """Scenarios that fell, the surest first; those of one run only are no suspects."""
    new = {"fell": [0.0] * 5, "same": [1.0] * 5, "less": [1.0, 0.0, 0.0, 0.0, 0.0], "new": [0.0] * 5, "lost": []}
    base = {"fell": [1.0] * 5, "same": [1.0] * 5, "less": [1.0] * 5, "lost": [1.0] * 5}

    assert [Suspect("fell", 1.0, 0.0, 1 / 252), Suspect("less", 1.0, 0.2, 6 / 252)] == suspects(new, base)
    assert ["fell"] == [each.scenario for each in suspects(new, base, rate=0.02)]


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=6), st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_a_p_value_is_one(new: list[float], base: list[float]) -> None:
    """Between 0 and 1, and when the runs change places the two together are at least 1."""
    assert 0 < fell(new, base) <= 1
    assert fell(new, base) + fell(base, new) >= 1 - 1e-9
