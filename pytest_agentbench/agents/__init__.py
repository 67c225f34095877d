"""Agents: each knows how to work on a scenario with a model and tools, and nothing of pytest, backends or scoring."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from pytest_agentbench.agents.toolbox import Toolbox
from pytest_agentbench.llm import LLM
from pytest_agentbench.loading import load_object
from pytest_agentbench.records import Answer
from pytest_agentbench.scenarios import Scenario

#: Built-in agents; any other name is an import path, `my_package.agents:Agent` or `./agent.py:Agent`.
AGENTS: Mapping[str, str] = {
    "react": "pytest_agentbench.agents.react:React",
    "tool_calling": "pytest_agentbench.agents.tool_calling:ToolCalling",
}


class Agent(Protocol):
    """A frozen dataclass whose fields are the agent's options in suite.yaml."""

    async def run(self, scenario: Scenario, llm: LLM, tools: Toolbox) -> Answer:
        """Works on the scenario; raises LimitReached when it runs out of turns, AgentError when it is at fault."""


def load_agent(kind: str, folder: Path) -> type[Any]:
    """The class of an agent; raises ConfigError for an unknown name, with the known ones."""
    loaded: type[Any] = load_object("agent", kind, AGENTS, folder)
    return loaded
