"""The agent `nothing`, which does nothing. A task that rewards this agent is broken."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pytest_agentbench.llm.client import LLM
from pytest_agentbench.records import Answer
from pytest_agentbench.suites.suite import Scenario
from pytest_agentbench.tools.toolbox import Toolbox


@dataclass(frozen=True)
class Nothing:
    """The agent `nothing`: returns an empty answer without calling the model. It has no options."""

    needs_task: ClassVar[bool] = True

    async def run(self, scenario: Scenario, llm: LLM, tools: Toolbox) -> Answer:  # noqa: ARG002 - does not use them
        return Answer("")
