"""How often the agent called a tool that does not exist."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pytest_agentbench.records import Rollout, Score
from pytest_agentbench.scorers.declaration import scorer

if TYPE_CHECKING:
    from pytest_agentbench.suites.suite import Scenario


@scorer(better="lower", range=(0, math.inf), unit="calls")
def hallucinated(scenario: Scenario, rollout: Rollout) -> Score:
    """The number of calls that were answered with "there is no such tool"; 0 is best."""
    names = [call.name for call in rollout.tool_calls if call.problem == "unknown_tool"]
    return Score(len(names), {"calls": len(rollout.tool_calls)}, f"unknown tools: {', '.join(dict.fromkeys(names)) or 'none'}")
