"""TSQ that only asks whether what was expected was called."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from pytest_agentbench.records import Rollout, Score
from pytest_agentbench.scorers.declaration import scorer
from pytest_agentbench.scorers.matches import beyond, both_sides, listed, one_side

if TYPE_CHECKING:
    from pytest_agentbench.suites.suite import Scenario


@scorer(range=(0, 1))
def tsq_superset(scenario: Scenario, rollout: Rollout) -> Score:
    """The share of the expected calls that were made, matched by the name of their tool; 1.0 where none is expected.

    Order and arguments do not count, and a call that nobody expects does not, either.
    """
    expected_calls, made = both_sides(scenario, rollout)
    expected, actual = Counter(call.key for call in expected_calls), Counter(call.key for call in made)
    missing = listed(beyond(expected_calls, actual.elements()))
    return one_side(len(expected_calls), len(made), (expected & actual).total(), len(expected_calls), f"missing: {missing}")
