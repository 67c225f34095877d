"""Agents: each knows how to work on a scenario with a model and tools, and nothing of pytest, backends or scoring."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from pytest_agentbench.lib.user_code import load_object
from pytest_agentbench.llm.client import LLM
from pytest_agentbench.records import Answer
from pytest_agentbench.suites.suite import Scenario
from pytest_agentbench.tools.toolbox import Toolbox

#: Built-in agents; any other name is an import path, `my_package.agents:Agent` or `./agent.py:run`.
AGENTS: Mapping[str, str] = {
    "command": "pytest_agentbench.agents.command:Command",
    "nothing": "pytest_agentbench.agents.nothing:Nothing",
    "oracle": "pytest_agentbench.agents.oracle:Oracle",
    "orchestrator": "pytest_agentbench.agents.orchestrator:Orchestrator",
    "react": "pytest_agentbench.agents.react:React",
    "self_evaluating": "pytest_agentbench.agents.self_evaluating:SelfEvaluating",
    "self_evaluating_with_feedback": "pytest_agentbench.agents.self_evaluating:SelfEvaluatingWithFeedback",
    "terminal": "pytest_agentbench.agents.terminal:Terminal",
    "tool_calling": "pytest_agentbench.agents.tool_calling:ToolCalling",
}


class Agent(Protocol):
    """A frozen dataclass whose fields are the agent's options in suite.yaml. Its `run` may be a plain `def`.

    That gets a thread, and a BlockingToolbox.

    One that only the tap can look into has `black_box: ClassVar[bool] = True`; `llm.said` then tells it what the model said.
    One that works in a sandbox has `needs_task: ClassVar[bool] = True`, and `tools.sandbox` is where.
    One that cannot do without roles has a set of them, `needs_roles`: without any of them, or its key, its suite cannot run.
    """

    async def run(self, scenario: Scenario, llm: LLM, tools: Toolbox) -> Answer:
        """Works on the scenario; raises LimitReached when it runs out of turns, AgentError when it is at fault."""


def load_agent(kind: str, folder: Path) -> Any:
    """The class of an agent, or the function that is one; raises ConfigError for an unknown name, with the known ones."""
    return load_object("agent", kind, AGENTS, folder)
