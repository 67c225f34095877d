"""Tool selection quality: were the expected tools called, and no others?

This is the F1 of two sets of tool names, as NVIDIA's NeMo Agent Toolkit has it (`nat_compat` is its exact arithmetic). Galileo's
agent leaderboard gives the name to something else: there a language model judges the tools and their arguments turn by turn.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pytest_agentbench.records import Rollout, Score
from pytest_agentbench.scorers.declaration import scorer
from pytest_agentbench.scorers.matches import ActualCall, CallKey, ExpectedCall, both_sides, f1, listed

if TYPE_CHECKING:
    from pytest_agentbench.suites.suite import Scenario


@scorer(range=(0, 1))
def tsq(scenario: Scenario, rollout: Rollout) -> Score:
    """F1 over distinct tool names; order, repeats and arguments do not count.

    Where no tool is expected, a rollout without tool calls has 1.0 and any other 0.0.
    """
    wanted, made = both_sides(scenario, rollout)
    expected, actual = _distinct(wanted), _distinct(made)
    missing = [name for key, name in expected.items() if key not in actual]
    unexpected = [name for key, name in actual.items() if key not in expected]
    matched = len(expected.keys() & actual.keys())
    return f1(len(expected), len(actual), matched, f"missing: {listed(missing)}", f"unexpected: {listed(unexpected)}")


def _distinct(calls: Iterable[ExpectedCall | ActualCall]) -> dict[CallKey, str]:
    """Each tool once, with its name as it was first written, in order of appearance."""
    distinct: dict[CallKey, str] = {}
    for call in calls:
        distinct.setdefault(call.key, call.name)
    return distinct
