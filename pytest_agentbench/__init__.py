"""Agent benchmarks as pytest suites: quality and serving performance from the same rollouts."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_agentbench.backends.backend import Backend, Tell
    from pytest_agentbench.backends.telemetry.samples import Sources, Target, read_samples
    from pytest_agentbench.errors import AgentError, BackendError, InfraError, LimitReached, ToolError
    from pytest_agentbench.exports import Source
    from pytest_agentbench.launchers.launcher import Launcher, LaunchState, WorkerTerms
    from pytest_agentbench.llm.client import LLM
    from pytest_agentbench.llm.judge import Form, ask
    from pytest_agentbench.metrics import timings
    from pytest_agentbench.metrics.other_tools import load_peer
    from pytest_agentbench.records import Answer, Chunk, Endpoint, LLMCall, Rollout, Score, ToolCall
    from pytest_agentbench.reports.document import Code, Column, Fact, Level, Measure, Note, Section, Table
    from pytest_agentbench.reports.view import RunView
    from pytest_agentbench.rollouts.checks import SuiteDraft
    from pytest_agentbench.rollouts.questions_of_tests import SuiteInfo
    from pytest_agentbench.runs.conversations import Conversations, NotKept
    from pytest_agentbench.runs.journal import read_journal
    from pytest_agentbench.runs.run_file import Run
    from pytest_agentbench.scorers.declaration import scorer
    from pytest_agentbench.scorers.tsq import tsq
    from pytest_agentbench.suites.datasets.loaded_scenarios import Selection
    from pytest_agentbench.suites.suite import Scenario, Tool
    from pytest_agentbench.tables import load
    from pytest_agentbench.tools.toolbox import BlockingToolbox, Toolbox

__all__ = [
    "LLM",
    "AgentError",
    "Answer",
    "Backend",
    "BackendError",
    "BlockingToolbox",
    "Chunk",
    "Code",
    "Column",
    "Conversations",
    "Endpoint",
    "Fact",
    "Form",
    "InfraError",
    "LLMCall",
    "LaunchState",
    "Launcher",
    "Level",
    "LimitReached",
    "Measure",
    "NotKept",
    "Note",
    "Rollout",
    "Run",
    "RunView",
    "Scenario",
    "Score",
    "Section",
    "Selection",
    "Source",
    "Sources",
    "SuiteDraft",
    "SuiteInfo",
    "Table",
    "Target",
    "Tell",
    "Tool",
    "ToolCall",
    "ToolError",
    "Toolbox",
    "WorkerTerms",
    "ask",
    "load",
    "load_peer",
    "read_journal",
    "read_samples",
    "scorer",
    "timings",
    "tsq",
]

#: Public name -> its module, relative to this package. A module is imported when its name is first used: many processes need none of them.
_MODULES = {
    "LLM": "llm.client",
    "AgentError": "errors",
    "Answer": "records",
    "Backend": "backends.backend",
    "BackendError": "errors",
    "BlockingToolbox": "tools.toolbox",
    "Chunk": "records",
    "Code": "reports.document",
    "Column": "reports.document",
    "Conversations": "runs.conversations",
    "Endpoint": "records",
    "Fact": "reports.document",
    "Form": "llm.judge",
    "InfraError": "errors",
    "LLMCall": "records",
    "LaunchState": "launchers.launcher",
    "Launcher": "launchers.launcher",
    "Level": "reports.document",
    "LimitReached": "errors",
    "Measure": "reports.document",
    "NotKept": "runs.conversations",
    "Note": "reports.document",
    "Rollout": "records",
    "Run": "runs.run_file",
    "RunView": "reports.view",
    "Scenario": "suites.suite",
    "Score": "records",
    "Section": "reports.document",
    "Selection": "suites.datasets.loaded_scenarios",
    "Source": "exports",
    "Sources": "backends.telemetry.samples",
    "SuiteDraft": "rollouts.checks",
    "SuiteInfo": "rollouts.questions_of_tests",
    "Table": "reports.document",
    "Target": "backends.telemetry.samples",
    "Tell": "backends.backend",
    "Tool": "suites.suite",
    "ToolCall": "records",
    "ToolError": "errors",
    "Toolbox": "tools.toolbox",
    "WorkerTerms": "launchers.launcher",
    "ask": "llm.judge",
    "load": "tables",
    "load_peer": "metrics.other_tools",
    "read_journal": "runs.journal",
    "read_samples": "backends.telemetry.samples",
    "scorer": "scorers.declaration",
    "timings": "metrics",
    "tsq": "scorers.tsq",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_MODULES[name]}")
    return importlib.import_module(f"{module.__name__}.{name}") if name == "timings" else getattr(module, name)
