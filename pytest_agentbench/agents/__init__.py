"""The built-in agents and the protocol that all agents follow.

An agent works on a scenario with a model and tools. It does not depend on pytest, backends or scoring.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from pytest_agentbench.lib.user_code import load_object
from pytest_agentbench.llm.client import LLM
from pytest_agentbench.records import Answer
from pytest_agentbench.suites.suite import Scenario
from pytest_agentbench.tools.toolbox import Toolbox

#: Built-in agents. Any other name is an import path, such as `my_package.agents:Agent` or `./agent.py:run`.
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
    """Works on scenarios by calling a model and tools. One instance runs all rollouts of a suite and variant, several at the same time.

    An agent is a frozen dataclass. Its fields are the options of the agent in suite.yaml. If `run` is a plain `def`, it runs in a thread
    and gets a BlockingToolbox.

    Optional attributes of the class:

    - `black_box: ClassVar[bool] = True`: the agent does not call the model through `llm`, so only the tap (the recording proxy) sees its
      calls. `llm.said` returns the model's messages.
    - `needs_task: ClassVar[bool] = True`: the agent works in the sandbox of a task, `tools.sandbox`.
    - `needs_roles`: the names of other models that the agent calls. If one of them, or its API key, is missing, the suite cannot run.
    """

    async def run(self, scenario: Scenario, llm: LLM, tools: Toolbox) -> Answer:
        """Works on the scenario and returns the answer. Raises LimitReached if it runs out of turns, and AgentError for its own faults."""


def load_agent(kind: str, folder: Path) -> Any:
    """Returns the class or function of a built-in agent, or of an import path. Raises ConfigError for an unknown name."""
    return load_object("agent", kind, AGENTS, folder)
