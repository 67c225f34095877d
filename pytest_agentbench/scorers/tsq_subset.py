"""TSQ that only asks whether what was called was expected."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from pytest_agentbench.records import Rollout, Score
from pytest_agentbench.scorers.declaration import scorer
from pytest_agentbench.scorers.matches import beyond, both_sides, listed, one_side

if TYPE_CHECKING:
    from pytest_agentbench.suites.suite import Scenario


@scorer(range=(0, 1))
def tsq_subset(scenario: Scenario, rollout: Rollout) -> Score:
    """The share of the calls made that are expected ones, matched by the name of their tool; 1.0 where none was made.

    Order and arguments do not count, and an expected call that was not made does not, either. A repeat that is not expected does.
    """
    expected_calls, made = both_sides(scenario, rollout)
    expected, actual = Counter(call.key for call in expected_calls), Counter(call.key for call in made)
    unexpected = listed(beyond(made, expected.elements()))
    return one_side(len(expected_calls), len(made), (expected & actual).total(), len(made), f"unexpected: {unexpected}")
