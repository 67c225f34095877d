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
    """Executes the tool calls of one rollout. Raises InfraError if the source itself fails."""

    async def call(self, tool: Tool, arguments: Json) -> str:
        """Executes a call whose arguments fit the schema. Returns the text for the model.

        Raises ToolError with another text for the model if the tool refuses the call.
        """

    def state(self) -> Json | None:
        """Returns the current state of the scenario, or None if it is unknown."""

    def copy(self) -> ToolSource:
        """Returns a source with a copy of the state, for agents that make several drafts."""


class Tools(Protocol):
    """The tools of a suite and variant, ready for use."""

    def for_scenario(self, scenario: Scenario) -> Scenario:
        """Returns the scenario with the tools that its agent is offered."""

    def opened(self, scenario: Scenario, seconds: float | None = None) -> AbstractAsyncContextManager[ToolSource]:
        """Opens the source of one rollout until the block ends. `seconds` limits the time of the suite's code for that (None: no limit).

        Raises InfraError if the source cannot be opened.
        """


class ToolsKind(Protocol):
    """A kind of tools: a frozen dataclass with the keys of suite.yaml other than `kind` as fields. Raises ValueError if one is invalid."""

    own_code: ClassVar[bool]  # whether the tools are code of the suite

    def load(self, folder: Path, scenarios: Sequence[Scenario]) -> Tools:
        """Loads the tools of a suite in this folder, for some of its scenarios. Raises ConfigError if they cannot be used."""


@dataclass(frozen=True)
class DecisionOnly:
    """Answers each call with a sample response, which is always the same for a tool."""

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
    """Generates a response from the tool's response schema. It is always the same for the same tool."""
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
