"""A slow node in A/B sessions of equal arms."""

from __future__ import annotations

import pytest

from benchmarks.verdicts.benchmark import within
from benchmarks.verdicts.nodes import simulate

SESSIONS = 200
WRONG_FAIL, CLAIM = 0.025, 0.05  # nominal shares of an interval of 95 %


@pytest.mark.parametrize("q", [50, 90])
def test_a_slow_node_does_not_turn_a_comparison_of_equal_arms(q: int) -> None:
    """If a scenario runs on the same node in both arms, a node at +50 ms causes no more wrong FAILs than the level of the interval says."""
    found = simulate("same", q, SESSIONS, seed=q)

    assert found.wrong_fails <= within(WRONG_FAIL, SESSIONS)
    assert found.claims <= within(CLAIM, SESSIONS)


def test_without_pairs_on_the_same_node() -> None:
    """Nodes that are drawn by chance make intervals wider. If the slow node gets more rollouts of one arm, equal arms are told apart."""
    same, drawn, uneven = (simulate(placing, 50, SESSIONS, seed=1) for placing in ("same", "any", "by arm"))

    assert drawn.wrong_fails <= within(WRONG_FAIL, SESSIONS)
    assert 1.1 * same.width < drawn.width
    assert drawn.found < same.found
    assert 0.5 < uneven.wrong_fails
