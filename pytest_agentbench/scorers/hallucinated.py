"""Counts calls of tools that do not exist."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pytest_agentbench.records import Rollout, Score
from pytest_agentbench.scorers.declaration import scorer

if TYPE_CHECKING:
    from pytest_agentbench.suites.suite import Scenario


@scorer(better="lower", range=(0, math.inf), unit="calls")
def hallucinated(scenario: Scenario, rollout: Rollout) -> Score:
    """Returns the number of calls of tools that do not exist. 0 is best. Such a call lowers `tsq`, too."""
    names = [call.name for call in rollout.tool_calls if call.problem == "unknown_tool"]
    return Score(len(names), {"calls": len(rollout.tool_calls)}, f"unknown tools: {', '.join(dict.fromkeys(names)) or 'none'}")
