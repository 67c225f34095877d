"""Counts calls that repeat an earlier call."""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import TYPE_CHECKING

from pytest_agentbench.records import Rollout, Score, ToolCall
from pytest_agentbench.scorers.declaration import scorer

if TYPE_CHECKING:
    from pytest_agentbench.suites.suite import Scenario


@scorer(better="lower", range=(0, math.inf), unit="calls")
def repeated(scenario: Scenario, rollout: Rollout) -> Score:
    """Returns the number of calls with the same name and arguments as an earlier one. 0 is best."""
    times = Counter(map(identity, rollout.tool_calls))
    again = [f"{name} ({count} times)" for (name, _), count in times.items() if count > 1]
    return Score(len(rollout.tool_calls) - len(times), {"calls": len(rollout.tool_calls)}, f"repeated: {', '.join(again) or 'none'}")


def identity(call: ToolCall) -> tuple[str, str]:
    """Returns the name and arguments of a call in a form that is equal for equal calls. Arguments that cannot be parsed stay a text."""
    return call.name, json.dumps(call.arguments, sort_keys=True) if call.raw is None or call.repaired else call.raw
