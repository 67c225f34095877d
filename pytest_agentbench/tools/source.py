"""What carries a tool's calls out. The first source carries out nothing: what counts is what the agent decides on."""

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
    """The tools of one rollout behind their schemas. A source that fails itself raises InfraError."""

    async def call(self, tool: Tool, arguments: Json) -> str:
        """What the model is told of a call that fits the schema. Raises ToolError where the tool refuses, whose text the model is told."""

    def state(self) -> Json | None:
        """What its tools have made of the scenario's state so far; None where nobody knows."""

    def copy(self) -> ToolSource:
        """One in the same state, for an agent that tries more than once."""


class Tools(Protocol):
    """The tools of a suite and variant, ready for use."""

    def for_scenario(self, scenario: Scenario) -> Scenario:
        """The scenario with the tools that its agent is offered."""

    def opened(self, scenario: Scenario, seconds: float | None = None) -> AbstractAsyncContextManager[ToolSource]:
        """Returns the source of one rollout, open until the block ends. Code of the suite has `seconds` to make it (None: no limit).

        Raises InfraError if there is no source.
        """


class ToolsKind(Protocol):
    """A kind of tools: a frozen dataclass whose fields are the keys beside `kind` in suite.yaml; ValueError for what cannot be meant."""

    own_code: ClassVar[bool]  # whether it is code of the suite

    def load(self, folder: Path, scenarios: Sequence[Scenario]) -> Tools:
        """The tools of a suite in this folder, for some of its scenarios; raises ConfigError for what cannot be used."""


@dataclass(frozen=True)
class DecisionOnly:
    """Answers each call with a sample, which a tool has always the same of."""

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
    """A response made from the tool's response schema: always the same one for the same tool."""
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
