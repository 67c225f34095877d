"""Distributions, against published quantiles and closed forms."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_agentbench.stats.quantiles import binomial_at_most, incomplete_beta, normal_quantile, student_t_quantile


@pytest.mark.parametrize(
    ("p", "degrees", "quantile"),  # NIST/SEMATECH e-handbook 1.3.6.7.2, with more digits from scipy.stats.t.ppf
    [
        (0.975, 1, 12.706204736),
        (0.975, 2, 4.302652730),
        (0.975, 5, 2.570581836),
        (0.975, 10, 2.228138852),
        (0.975, 30, 2.042272456),
        (0.975, 120, 1.979930405),
        (0.95, 10, 1.812461123),
        (0.995, 5, 4.032142984),
        (0.9995, 1, 636.6192488),
        (0.975, 1_000_000, 1.959966357),  # the normal quantile 1.959963985 + (z + z^3) / (4 x degrees)
        (0.5, 7, 0.0),
        (0.025, 5, -2.570581836),
    ],
)
def test_student_t_quantiles(p: float, degrees: int, quantile: float) -> None:
    """Quantiles of Student's t equal published ones to 1e-6."""
    assert quantile == pytest.approx(student_t_quantile(p, degrees), rel=1e-6, abs=1e-12)


@given(p=st.floats(0.001, 0.999))
def test_student_t_quantiles_in_closed_form(p: float) -> None:
    """One degree of freedom gives Cauchy's distribution. Two degrees of freedom have an algebraic quantile."""
    assert math.isclose(math.tan(math.pi * (p - 0.5)), student_t_quantile(p, 1), rel_tol=1e-6, abs_tol=1e-9)
    assert math.isclose((2 * p - 1) / math.sqrt(2 * p * (1 - p)), student_t_quantile(p, 2), rel_tol=1e-6, abs_tol=1e-9)


@pytest.mark.parametrize(("p", "degrees"), [(0.0, 3), (1.0, 3), (math.nan, 3), (0.9, 0)])
def test_impossible_quantiles(p: float, degrees: int) -> None:
    """The ends of the distribution and no degrees of freedom are refused."""
    with pytest.raises(ValueError, match="Student's t needs 0 < p < 1"):
        student_t_quantile(p, degrees)


def test_incomplete_beta() -> None:
    """The incomplete beta function equals the polynomial I_x(2, 3) = 6x^2 - 8x^3 + 3x^4, on either side of the symmetry."""
    for x in (0.1, 0.4, 0.5, 0.9):
        assert math.isclose(6 * x**2 - 8 * x**3 + 3 * x**4, incomplete_beta(2, 3, x), rel_tol=1e-12)


@pytest.mark.parametrize(
    ("k", "n", "p", "probability"),  # scipy.stats.binom.cdf
    [
        (3, 20, 0.2, 0.41144886195656893),
        (0, 100, 0.05, 0.005920529220334023),
        (-1, 5, 0.5, 0.0),
        (5, 5, 0.5, 1.0),
        (2, 5, 0.0, 1.0),
        (2, 5, 1.0, 0.0),
    ],
)
def test_binomial(k: int, n: int, p: float, probability: float) -> None:
    """Binomial probabilities equal published tails. They are 0 or 1 if the count or the probability is at its end."""
    assert probability == pytest.approx(binomial_at_most(k, n, p), rel=1e-10)


def test_normal_quantile() -> None:
    """The 97.5 % quantile is the number in every 95 % interval."""
    assert 1.959963984540054 == pytest.approx(normal_quantile(0.975), rel=1e-12)
