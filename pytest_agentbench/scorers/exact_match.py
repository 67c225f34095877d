"""Checks whether exactly the expected calls were made, in their order and with their arguments."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING

from pytest_agentbench.records import Rollout, Score
from pytest_agentbench.scorers.arguments import fits
from pytest_agentbench.scorers.declaration import scorer
from pytest_agentbench.scorers.matching import ActualCall, ExpectedCall, expected_and_actual

if TYPE_CHECKING:
    from pytest_agentbench.suites.suite import Scenario


@scorer(range=(0, 1))
def exact_match(scenario: Scenario, rollout: Rollout) -> Score:
    """Returns 1.0 if the calls are the expected ones in the expected order, with the expected arguments, otherwise 0.0.

    The explanation is the first difference.
    """
    expected, made = expected_and_actual(scenario, rollout)
    faults = [_fault(*pair) for pair in zip_longest(expected, made)]
    right = next((i for i, fault in enumerate(faults) if fault), len(faults))
    return Score(
        1.0 if right == len(faults) else 0.0,
        {"expected": len(expected), "actual": len(made), "right_before_first_fault": right},
        f"call {right + 1}: {faults[right]}" if right < len(faults) else "the calls are the expected ones",
    )


def _fault(expected: ExpectedCall | None, made: ActualCall | None) -> str:
    """Returns how the n-th call differs from the n-th expected call, or an empty string. One of them may be missing (None)."""
    if expected is None or made is None:
        return f"{expected.name} is missing" if expected else f"{made.name} is not expected" if made else ""
    if expected.key[0] != made.key[0]:
        return f"{made.name} was called in turn {made.key[0]}, expected {expected.name} in turn {expected.key[0]}"
    if expected.key != made.key:
        return f"{made.name} was called, expected {expected.name}"
    fault = fits(made.call, expected.label, expected.tool)
    return f"{expected.name}: {fault}" if fault else ""
