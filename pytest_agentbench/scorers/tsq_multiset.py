"""TSQ that counts how often each tool was called."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from pytest_agentbench.records import Rollout, Score
from pytest_agentbench.scorers.declaration import scorer
from pytest_agentbench.scorers.matches import beyond, both_sides, f1, listed

if TYPE_CHECKING:
    from pytest_agentbench.suites.suite import Scenario


@scorer(range=(0, 1))
def tsq_multiset(scenario: Scenario, rollout: Rollout) -> Score:
    """F1 over calls, matched by the name of their tool; order and arguments do not count, a repeat that is not expected does."""
    expected_calls, made = both_sides(scenario, rollout)
    expected, actual = Counter(call.key for call in expected_calls), Counter(call.key for call in made)
    missing, unexpected = listed(beyond(expected_calls, actual.elements())), listed(beyond(made, expected.elements()))
    return f1(len(expected_calls), len(made), (expected & actual).total(), f"missing: {missing}", f"unexpected: {unexpected}")
