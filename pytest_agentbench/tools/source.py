"""Tool sources, which execute tool calls. `DecisionOnly` executes nothing, for suites that only evaluate the agent's decisions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import orjson

from pytest_agentbench.records import Json
from pytest_agentbench.suites.suite import Scenario, Tool


class ToolSource(Protocol):
    """An object that executes the tool calls of one rollout. Its methods raise InfraError if it fails itself."""

    async def call(self, tool: Tool, arguments: Json) -> str:
        """Executes a call whose arguments fit the tool's schema. Returns the tool's answer as text for the model.

        Raises ToolError if the tool refuses the call. Its message is then the text for the model.
        """

    def state(self) -> Json | None:
        """Returns the current state of the tools, which scorers can check, or None if it is unknown."""

    def copy(self) -> ToolSource:
        """Returns a source with a copy of the state, for an agent that makes several drafts (attempts of which it chooses one)."""


class Tools(Protocol):
    """The loaded tools of a suite. `opened` creates the tool source of each rollout."""

    def for_scenario(self, scenario: Scenario) -> Scenario:
        """Returns the scenario with all tools that its agent can call. Tools in the scenario's data take precedence."""

    def opened(self, scenario: Scenario, seconds: float | None = None) -> AbstractAsyncContextManager[ToolSource]:
        """Opens the tool source of one rollout until the block ends.

        If the suite's code takes longer than `seconds` to create it, or fails, InfraError is raised. None means no time limit.
        """


class ToolsKind(Protocol):
    """The interface of the classes in TOOL_KINDS, such as `McpTools`: the settings under `tools` in suite.yaml.

    Each class is a frozen dataclass. Its fields are the keys under `tools`, except `kind`. It raises ValueError if one is invalid.
    """

    own_code: ClassVar[bool]  # whether the tools are code of the suite

    def load(self, folder: Path, scenarios: Sequence[Scenario]) -> Tools:
        """Loads the tools of a suite in this folder, for some of its scenarios. Raises ConfigError if they cannot be used."""


@dataclass(frozen=True)
class DecisionOnly:
    """The default `tools` (`kind: decision_only`): no code is run, and each tool always answers with the same sample response."""

    own_code: ClassVar[bool] = False

    def load(self, folder: Path, scenarios: Sequence[Scenario]) -> DecisionOnly:
        del folder, scenarios
        return self

    def for_scenario(self, scenario: Scenario) -> Scenario:
        return scenario

    @asynccontextmanager
    async def opened(self, scenario: Scenario, seconds: float | None = None) -> AsyncIterator[DecisionOnly]:
        del scenario, seconds
        yield self

    async def call(self, tool: Tool, arguments: Json) -> str:
        del arguments
        return sample_response(tool)

    def state(self) -> None:
        return None

    def copy(self) -> DecisionOnly:
        return self


_SAMPLES: Mapping[str, Any] = {"integer": 100, "number": 100.5, "boolean": True, "array": [], "object": {}, "null": None}


def sample_response(tool: Tool) -> str:
    """Generates an answer that fits the tool's response schema. A tool always gets the same answer."""
    properties = tool.response_schema.get("properties") or {}
    if not properties:
        return f"{tool.name} is done."
    return orjson.dumps({name: _sample(name, field) for name, field in properties.items()}).decode()


def _sample(name: str, field: Any) -> Any:
    field = field if isinstance(field, dict) else {}
    enum, kind = field.get("enum"), field.get("type")
    if isinstance(enum, list) and enum:
        return enum[0]
    return _SAMPLES.get(str(kind[0] if isinstance(kind, list) and kind else kind), f"sample {name}")
