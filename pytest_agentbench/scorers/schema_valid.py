"""Checks how many calls were valid: the tool exists, and the arguments fit its schema."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_agentbench.records import Rollout, Score
from pytest_agentbench.scorers.declaration import scorer

if TYPE_CHECKING:
    from pytest_agentbench.suites.suite import Scenario


@scorer(range=(0, 1))
def schema_valid(scenario: Scenario, rollout: Rollout) -> Score:
    """Returns the share of the calls whose tool exists and whose arguments are JSON that fits the tool's schema.

    Calls were checked when they were made, repaired ones in their repaired form. The part `repaired` is their number. Without calls the
    value is 1.0.
    """
    calls = rollout.tool_calls
    wrong = [f"{call.name}: {call.problem}{f' ({call.detail})' if call.detail else ''}" for call in calls if call.problem]
    return Score(
        1 - len(wrong) / len(calls) if calls else 1.0,
        {"calls": len(calls), "valid": len(calls) - len(wrong), "repaired": sum(call.repaired for call in calls)},
        "; ".join(wrong) or ("all calls fit" if calls else "no call was made"),
    )
