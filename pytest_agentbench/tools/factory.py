"""Creates tools from `tools` and `answers` in suite.yaml. To add a kind of tools, add a module here and a line in TOOL_KINDS."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_agentbench.errors import ConfigError, InjectedError, unknown_key, unknown_name
from pytest_agentbench.lib.user_code import load_object
from pytest_agentbench.records import Json
from pytest_agentbench.suites.suite import Scenario, Tool, toolsets
from pytest_agentbench.tools.source import Tools, ToolsKind, ToolSource


@dataclass(frozen=True)
class CannedAnswer:
    """A fixed answer, a delay or injected errors for the calls of one tool, from `answers` in suite.yaml."""

    text: str | None = None  # text of the answer; None means that the call is executed by the tool source
    delay: float = 0.0  # seconds before each answer
    error_rate: float = 0.0  # share of calls that get an error instead, from 0 to 1


def answers_from(settings: Json) -> Mapping[str, CannedAnswer]:
    """Creates the canned answers from the JSON of `Suite.answers_of`, by name of the tool."""
    return {tool: CannedAnswer(**each) for tool, each in settings.items()}


def check_answers(answers: Mapping[str, CannedAnswer], scenarios: Iterable[Scenario]) -> None:
    """Raises ConfigError if there is a canned answer for a tool that no scenario offers."""
    known = dict.fromkeys(tool.name for tools in toolsets(scenarios) for tool in tools)
    for tool in answers:
        if tool not in known:
            raise ConfigError(f"answers: {unknown_name('tool', tool, known)}")


def with_canned_answers(source: ToolSource, answers: Mapping[str, CannedAnswer], scenario: Scenario, trial: int) -> ToolSource:
    """Returns a tool source that gives the canned answers and passes other calls to `source`, or just `source` if there are none."""
    return CannedSource(source, answers, scenario.id, trial) if answers else source


class CannedSource:
    """A tool source that answers the calls of some tools with canned answers. It passes all other calls to the source that it wraps.

    Whether a call gets an injected error depends only on scenario, trial, tool and the number of calls of that tool. A repeated run thus
    has the same errors at the same calls, in all variants with the same error rates.
    """

    def __init__(
        self, source: ToolSource, answers: Mapping[str, CannedAnswer], scenario: str, trial: int, calls: Mapping[str, int] | None = None
    ) -> None:
        self._source, self._answers, self._scenario, self._trial = source, answers, scenario, trial
        self._calls = Counter(calls)  # calls so far of each tool

    async def call(self, tool: Tool, arguments: Json) -> str:
        answer = self._answers.get(tool.name)
        if answer is None:
            return await self._source.call(tool, arguments)
        self._calls[tool.name] += 1
        chance = random.Random(f"{self._scenario} {self._trial} {tool.name} {self._calls[tool.name]}").random()
        await asyncio.sleep(answer.delay)
        if chance < answer.error_rate:
            raise InjectedError(f"{tool.name} failed")
        return await self._source.call(tool, arguments) if answer.text is None else answer.text

    def state(self) -> Json | None:
        return self._source.state()

    def copy(self) -> ToolSource:
        return CannedSource(self._source.copy(), self._answers, self._scenario, self._trial, self._calls)


#: Kind -> class, whose fields are the keys of the kind in YAML.
TOOL_KINDS: Mapping[str, str] = {
    "decision_only": "pytest_agentbench.tools.source:DecisionOnly",
    "mcp": "pytest_agentbench.tools.mcp:McpTools",
    "python": "pytest_agentbench.tools.python:PythonTools",
}


def tool_kind(settings: Json) -> ToolsKind:
    """Returns the kind of tools that settings describe, without importing code of the suite. Raises ConfigError if they are invalid."""
    kind = settings.get("kind", "decision_only")
    if not isinstance(kind, str) or kind not in TOOL_KINDS:
        raise ConfigError(f"tools: {unknown_name('kind of tools', str(kind), TOOL_KINDS)}")
    cls = load_object("kind of tools", kind, TOOL_KINDS, Path())
    known = [each.name for each in dataclasses.fields(cls)]
    options = {name: value for name, value in settings.items() if name != "kind"}
    if unknown := [name for name in options if name not in known]:
        raise ConfigError(f"tools: {unknown_key(unknown[0], ('kind', *known), kind)}")
    try:
        kind_of_tools: ToolsKind = cls(**options)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"tools: {' '.join(str(error).split())}") from error
    return kind_of_tools


def load_tools(settings: Json, folder: Path, scenarios: Sequence[Scenario]) -> Tools:
    """Loads the tools of a suite in this folder. Raises ConfigError, with `tools:` before the reason, if they cannot be used."""
    try:
        return tool_kind(settings).load(folder, scenarios)
    except ConfigError as error:
        raise ConfigError(f"tools: {str(error).removeprefix('tools: ')}") from error


def brings_code(settings: Json) -> bool:
    """Returns whether these settings run code of the suite, such as its classes or MCP servers."""
    return tool_kind(settings).own_code
