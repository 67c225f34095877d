"""Agent benchmarks as pytest suites: quality and serving performance from the same rollouts."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from pytest_agentbench.errors import AgentError, InfraError, LimitReached
from pytest_agentbench.records import Answer, Endpoint, LLMCall, Rollout, Score, ToolCall

if TYPE_CHECKING:
    from pytest_agentbench.llm.client import LLM
    from pytest_agentbench.suites.suite import Scenario, SuiteInfo
    from pytest_agentbench.tools.toolbox import Toolbox

__all__ = [
    "LLM",
    "AgentError",
    "Answer",
    "Endpoint",
    "InfraError",
    "LLMCall",
    "LimitReached",
    "Rollout",
    "Scenario",
    "Score",
    "SuiteInfo",
    "ToolCall",
    "Toolbox",
]

#: Public names of modules that a test process has no use for: imported when somebody asks for them.
_LATER = {"LLM": "llm.client", "Scenario": "suites.suite", "SuiteInfo": "suites.suite", "Toolbox": "tools.toolbox"}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_LATER[name]}"), name)
