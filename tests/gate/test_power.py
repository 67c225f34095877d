"""What a suite can find, against the textbook and against simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_agentbench.gate.power import Design, factor, needed_scenarios, needed_trials, spread


def test_large_suites_follow_the_textbook() -> None:
    """(1.96 + 0.842) sqrt(2 E[p(1 - p)] / (n K)), to 2 %, where imaginary scenarios no longer count (Miller 2024)."""
    assert (1.959964 + 0.841621) * math.sqrt(2 * 0.16 / 20_000) == pytest.approx(Design(20_000, 1, 0.16).smallest_drop(), rel=0.02)
    assert (1.959964 + 0.841621) == pytest.approx(factor(1e6, 0.95), rel=1e-5)


def test_one_scenario_less_is_too_few() -> None:
    """The needed number is the least that finds the drop."""
    needed = needed_scenarios(0.05, Design(2, 5, 0.12))

    assert Design(needed, 5, 0.12).smallest_drop() <= 0.05 < Design(needed - 1, 5, 0.12).smallest_drop()
    with pytest.raises(ValueError, match="ten million scenarios"):
        needed_scenarios(1e-6, Design(2, 1, 0.2))


def test_one_trial_less_is_too_few() -> None:
    """The needed number of trials is the least that finds the drop; what few scenarios hide no trials find."""
    design = Design(100, 1, 0.12)
    needed = needed_trials(0.08, design)

    assert needed is not None
    assert Design(100, needed, 0.12).smallest_drop() <= 0.08 < Design(100, needed - 1, 0.12).smallest_drop()
    assert needed_trials(0.01, design) is None
    assert 1 == needed_trials(0.5, design)


def test_the_smallest_drop_passes_with_the_power_it_says() -> None:
    """As margin of an unchanged suite, and as a drop that fails; a suite without noise passes or does not."""
    design = Design(100, 3, 0.12)
    drop = design.smallest_drop(0.8)

    assert 0.8 == pytest.approx(design.pass_probability(drop))
    assert (0.0, 1.0) == (Design(100, 3, 0).pass_probability(0.02), Design(100, 3, 0).pass_probability(0.05))
    assert design.fail_probability(0.0, -2 * drop) > 0.99


@settings(deadline=None, max_examples=50)
@given(n=st.integers(5, 500), trials=st.integers(1, 10), within=st.floats(0, 0.25), change=st.floats(0, 0.2))
def test_more_is_never_worse(n: int, trials: int, within: float, change: float) -> None:
    """More scenarios, more trials and less noise find smaller drops, and no suite finds what its imaginary scenarios hide."""
    drop = Design(n, trials, within, change).smallest_drop()

    assert Design(n + 1, trials, within, change).smallest_drop() <= drop
    assert Design(n, trials + 1, within, change).smallest_drop() <= drop + 1e-12
    assert Design(n, trials, within, change + 0.01).smallest_drop() > drop
    assert Design(n, trials, 0.0).smallest_drop() <= drop


def test_variance_components() -> None:
    """Two scenarios with two trials each, by hand: within (0.02 + 0.02) / 2, mean square between 0.25, between (0.25 - 0.02) / 2."""
    found = spread({"a": [0.1, 0.3], "b": [0.6, 0.8], "lost": []})

    assert found.known
    assert (0.02, (0.25 - 0.02) / 2) == pytest.approx((found.within, found.between))


def test_one_trial_cannot_tell_the_components_apart() -> None:
    """All variance counts as noise of the trials then, and the record says so."""
    found = spread({"a": [0.0], "b": [1.0]})

    assert (0.0, 0.5, False) == (found.between, found.within, found.known)
    with pytest.raises(ValueError, match="1 measured scenarios"):
        spread({"a": [1.0]})


def test_components_of_a_simulated_suite() -> None:
    """2,000 scenarios with unequal numbers of trials: Var(p) = 0.05 and E[p(1 - p)] = 0.2 of Beta(2, 2) are found to 10 %."""
    random = np.random.default_rng(5)
    rates = random.beta(2, 2, 2000)
    found = spread({str(i): random.binomial(1, rate, 1 + i % 4).astype(float).tolist() for i, rate in enumerate(rates)})

    assert (0.05, 0.2) == pytest.approx((found.between, found.within), rel=0.1)


@pytest.mark.parametrize("design", [{"n": 1}, {"trials": 0}, {"within": -1.0}, {"change": -1.0}, {"confidence": 95.0}, {"reach": 0.0}])
def test_designs_that_cannot_be(design: dict[str, float]) -> None:
    """Refused, with the numbers."""
    with pytest.raises(ValueError, match="no comparison can be planned like this"):
        Design(**{"n": 10, "trials": 1, "within": 0.1, **design})  # type: ignore[arg-type]


def test_a_power_is_a_share() -> None:
    """80 is not 0.8."""
    with pytest.raises(ValueError, match=r"such as 0\.8, not 80"):
        Design(10, 1, 0.1).smallest_drop(80)
