"""Families of comparisons: which comparisons decide, and with which intervals."""

from __future__ import annotations

import random
from collections.abc import Callable
from statistics import NormalDist

from hypothesis import given
from hypothesis import strategies as st

from pytest_agentbench.stats.decisions import FAIL, INCONCLUSIVE, PASS, Decision, MissingScenarios, judge, step_down

NORMAL = NormalDist()


def z_test(value: float) -> Callable[[float], Decision]:
    """Returns a comparison of a normal value with 0, at a standard error of 1."""

    def compare(confidence: float) -> Decision:
        distance = NORMAL.inv_cdf((1 + confidence) / 2)
        low, high = value - distance, value + distance
        return Decision(judge(low, high, 0.0), 0.0, confidence, 9, (9, 9), MissingScenarios(), estimate=value, low=low, high=high)

    return compare


def without_data(confidence: float) -> Decision:
    return Decision(INCONCLUSIVE, 0.0, confidence, 1, (1, 1), MissingScenarios(), reason="too few")


def verdicts(*values: float) -> list[str]:
    return [decision.verdict for decision in step_down([*map(z_test, values)])]


def test_a_single_comparison_is_unchanged() -> None:
    """Two arms have one comparison, which needs no correction."""
    assert [z_test(1.97)(0.95)] == step_down([z_test(1.97)])
    assert [] == step_down([])


def test_each_decision_makes_the_next_easier() -> None:
    """Three comparisons need z = 2.394 (a risk of 0.05 / 3), 2.241 and 1.960. The procedure stops if none of the remaining ones decides."""
    assert [PASS, PASS, FAIL] == verdicts(2.40, 2.25, -1.97)
    assert [PASS, INCONCLUSIVE, INCONCLUSIVE] == verdicts(2.40, 2.23, -1.97)
    assert [INCONCLUSIVE] * 3 == verdicts(2.39, 2.25, -1.97)
    assert [1 - 0.05 / 3, 1 - 0.05 / 2, 0.95] == [each.confidence for each in step_down([*map(z_test, (2.40, 2.25, -1.97))])]


def test_a_comparison_without_an_interval_costs_the_others_nothing() -> None:
    """A comparison without an interval tests nothing, so the other one decides as if it were alone."""
    first, second = step_down([without_data, z_test(1.97)])

    assert ("too few", INCONCLUSIVE) == (first.reason, first.verdict)
    assert (PASS, 0.95) == (second.verdict, second.confidence)


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=12))
def test_the_decisions_are_those_of_holms_procedure(values: list[float]) -> None:
    """The decisions equal Holm's procedure with ordered p-values, each against risk / (number left).

    Each interval agrees with its decision.
    """
    decisions = step_down([*map(z_test, values)])
    p_values = sorted((2 * NORMAL.cdf(-abs(value)), place) for place, value in enumerate(values))
    claimed = set()
    for rank, (p, place) in enumerate(p_values):
        if p >= 0.05 / (len(values) - rank):
            break
        claimed.add(place)

    assert claimed == {place for place, decision in enumerate(decisions) if decision.verdict != INCONCLUSIVE}
    for decision, value in zip(decisions, values, strict=True):
        assert decision.low is not None and decision.high is not None
        assert (decision.low <= 0 <= decision.high) is (decision.verdict == INCONCLUSIVE)
        assert decision.confidence >= 0.95
        assert decision.low < value < decision.high


def test_families_of_equal_arms_claim_as_seldom_as_one_comparison() -> None:
    """If three arms equal a fourth and share its noise, at most 5 % of the families report a difference.

    Without correction it would be 11 %.
    """
    draw = random.Random(1)
    wrong = alone = 0
    for _ in range(4000):
        base = draw.gauss(0, 1)
        family = [z_test((draw.gauss(0, 1) - base) / 2**0.5) for _ in range(3)]
        wrong += any(each.verdict != INCONCLUSIVE for each in step_down(family))
        alone += any(each(0.95).verdict != INCONCLUSIVE for each in family)

    assert wrong / 4000 < 0.05 + 3 * (0.05 * 0.95 / 4000) ** 0.5
    assert alone / 4000 > 0.1
