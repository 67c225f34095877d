"""The power of a suite, against textbook formulas and simulation."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_agentbench.stats.decisions import QUESTIONS
from pytest_agentbench.stats.power import Design, ScoreLevel, least_margin, needed_scenarios, needed_trials, spread, trials_for


def test_large_suites_follow_the_textbook() -> None:
    """For a large suite, the smallest detectable drop is (1.96 + 0.842) sqrt(2 E[p(1 - p)] / (n K)) to 2 %, because imaginary scenarios
    hardly count (Miller 2024).
    """
    assert (1.959964 + 0.841621) * math.sqrt(2 * 0.16 / 20_000) == pytest.approx(Design(20_000, 1, 0.16).smallest_drop(), rel=0.02)


def test_one_scenario_less_is_too_few() -> None:
    """The needed number of scenarios is the smallest that detects the drop."""
    needed = needed_scenarios(0.05, Design(2, 5, 0.12))

    assert Design(needed, 5, 0.12).smallest_drop() <= 0.05 < Design(needed - 1, 5, 0.12).smallest_drop()
    with pytest.raises(ValueError, match="ten million scenarios"):
        needed_scenarios(1e-6, Design(2, 1, 0.2))


def test_one_trial_less_is_too_few() -> None:
    """The needed number of trials is the smallest that detects the drop. A baseline with few trials hides small drops."""
    design = Design(100, 1, 0.12)
    needed = needed_trials(0.08, design)

    assert needed is not None
    assert Design(100, needed, 0.12).smallest_drop() <= 0.08 < Design(100, needed - 1, 0.12).smallest_drop()
    assert needed_trials(0.01, Design(100, 1, 0.12, base_trials=1)) is None
    assert 1 == needed_trials(0.5, design)


def test_constant_scenarios_cannot_detect_a_small_drop() -> None:
    """Six of 100 rollouts have to fail to be detected, and no margin below 3.4 in a hundred passes.

    With 300 rollouts, both are about a third.
    """
    assert (0.0552, 0.0224) == pytest.approx([Design(100, trials, 0.0).smallest_drop() for trials in (1, 3)], abs=1e-4)
    assert (0.0337, 0.0114) == pytest.approx([Design(100, trials, 0.0).smallest_margin() for trials in (1, 3)], abs=1e-4)
    assert ["0.037", 4, 1] == [f"{least_margin(100, 1):.3f}", trials_for(0.01, 100), trials_for(0.05, 100)]


def test_more_trials_do_not_help_for_the_population() -> None:
    """More trials cannot reduce the margin that 100 scenarios pass below the limit that the imaginary scenarios set."""
    margins = [Design(100, trials, 0.12, of="population").smallest_margin() for trials in (1, 10, 1000)]

    assert margins[0] > margins[1] > margins[2] > 0.033
    assert Design(100, 1000, 0.12).smallest_margin() < 0.01


def test_noise_grows_if_a_good_suite_gets_worse() -> None:
    """The variance of passes at 0.8 grows until half of them fail, so a drop is harder to detect than with the initial variance."""
    alone, level = Design(20, 1, 0.12), ScoreLevel(0.8, 0.68)

    assert alone.smallest_drop() < replace(alone, level=level).smallest_drop()
    assert replace(alone, level=replace(level, new=0.0, pooled=0.0)).smallest_drop() == pytest.approx(alone.smallest_drop())


@settings(max_examples=50)
@given(n=st.integers(5, 500), trials=st.integers(1, 10), within=st.floats(1e-6, 0.25), of=st.sampled_from(QUESTIONS))
def test_more_is_never_worse(n: int, trials: int, within: float, of: str) -> None:
    """More scenarios, trials, baseline trials and less noise detect smaller drops, and pass with smaller margins."""
    design = Design(n, trials, within, of=of)
    better = [replace(design, n=n + 1), replace(design, trials=trials + 1, base_trials=trials), replace(design, within=within / 2)]

    for each in (*better, replace(design, base_trials=3 * trials)):
        assert each.smallest_drop() <= design.smallest_drop() + 1e-12
        assert each.smallest_margin() <= design.smallest_margin() + 1e-12


def test_variance_components() -> None:
    """For two scenarios with two trials each, the variances equal those by hand: within (0.02 + 0.02) / 2, between (0.25 - 0.02) / 2."""
    found = spread({"a": [0.1, 0.3], "b": [0.6, 0.8], "lost": []})

    assert found.known
    assert (0.02, (0.25 - 0.02) / 2) == pytest.approx((found.within, found.between))


def test_one_trial_cannot_tell_the_components_apart() -> None:
    """Without repeated trials, all variance counts as noise of the trials, and `known` is False."""
    found = spread({"a": [0.0], "b": [1.0]})

    assert (0.0, 0.5, False) == (found.between, found.within, found.known)
    with pytest.raises(ValueError, match="at least 2 measured scenarios, not 1"):
        spread({"a": [1.0]})


def test_components_of_a_simulated_suite() -> None:
    """For 2,000 scenarios with unequal numbers of trials, Var(p) = 0.05 and E[p(1 - p)] = 0.2 of Beta(2, 2) are estimated to 10 %."""
    random = np.random.default_rng(5)
    rates = random.beta(2, 2, 2000)
    found = spread({str(i): random.binomial(1, rate, 1 + i % 4).astype(float).tolist() for i, rate in enumerate(rates)})

    assert (0.05, 0.2) == pytest.approx((found.between, found.within), rel=0.1)


@pytest.mark.parametrize("design", [{"n": 1}, {"trials": 0}, {"within": -1.0}, {"base_trials": -1}, {"confidence": 95.0}, {"width": 0.0}])
def test_impossible_designs(design: dict[str, float]) -> None:
    """An impossible design is refused, with its numbers."""
    with pytest.raises(ValueError, match="a comparison needs at least 2 scenarios"):
        Design(**{"n": 10, "trials": 1, "within": 0.1, **design})  # type: ignore[arg-type]


def test_a_power_is_a_share() -> None:
    """A power of 80 instead of 0.8 is refused."""
    with pytest.raises(ValueError, match=r"power 80 must be .* such as 0\.8"):
        Design(10, 1, 0.1).smallest_drop(80)
