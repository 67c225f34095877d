"""From `tools` and `answers` in a suite.yaml to tools that can be called. A new kind is a file here and a line in TOOL_KINDS."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_agentbench.errors import ConfigError, InjectedError, unknown_name
from pytest_agentbench.lib.user_code import load_object
from pytest_agentbench.records import Json
from pytest_agentbench.suites.suite import Scenario, Tool, toolsets
from pytest_agentbench.tools.source import Tools, ToolsKind, ToolSource


@dataclass(frozen=True)
class CannedAnswer:
    """How the calls of one tool are answered."""

    text: str | None = None  # None: by the source
    delay: float = 0.0  # seconds
    error_rate: float = 0.0  # share of the calls that get an error instead, from 0 to 1


def answers_from(settings: Json) -> Mapping[str, CannedAnswer]:
    """Tool -> its canned answer, of what `Suite.answers_of` gives."""
    return {tool: CannedAnswer(**each) for tool, each in settings.items()}


def check_answers(answers: Mapping[str, CannedAnswer], scenarios: Iterable[Scenario]) -> None:
    """Raises ConfigError for a canned answer of a tool that no scenario offers."""
    known = dict.fromkeys(tool.name for tools in toolsets(scenarios) for tool in tools)
    for tool in answers:
        if tool not in known:
            raise ConfigError(f"answers: {unknown_name('tool', tool, known)}")


def with_canned_answers(source: ToolSource, answers: Mapping[str, CannedAnswer], scenario: Scenario, trial: int) -> ToolSource:
    """The source of a rollout with canned answers before it, where there are any."""
    return CannedSource(source, answers, scenario.id, trial) if answers else source


class CannedSource:
    """A source of one rollout whose canned tools are answered here, and the others by it.

    Whether a call gets an error depends on scenario, trial, tool and how often the rollout has called that tool: a run that is
    repeated has the same errors at the same calls, under all variants.
    """

    def __init__(
        self, source: ToolSource, answers: Mapping[str, CannedAnswer], scenario: str, trial: int, calls: Mapping[str, int] | None = None
    ) -> None:
        self._source, self._answers, self._scenario, self._trial = source, answers, scenario, trial
        self._calls = Counter(calls)  # of each tool, so far

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


#: Each a class with the keys of its YAML as fields.
TOOL_KINDS: Mapping[str, str] = {
    "decision_only": "pytest_agentbench.tools.source:DecisionOnly",
    "mcp": "pytest_agentbench.tools.mcp:McpTools",
    "python": "pytest_agentbench.tools.python:PythonTools",
}


def tool_kind(settings: Json) -> ToolsKind:
    """The kind of tools that settings describe; nothing of the suite is imported. Raises ConfigError that says what is wrong with them."""
    kind = settings.get("kind", "decision_only")
    if not isinstance(kind, str) or kind not in TOOL_KINDS:
        raise ConfigError(f"tools: {unknown_name('kind of tools', str(kind), TOOL_KINDS)}")
    cls = load_object("kind of tools", kind, TOOL_KINDS, Path())
    known = [each.name for each in dataclasses.fields(cls)]
    options = {name: value for name, value in settings.items() if name != "kind"}
    if unknown := [name for name in options if name not in known]:
        raise ConfigError(f"tools: unknown key {unknown[0]!r}; known keys of {kind}: {', '.join(('kind', *known))}")
    try:
        kind_of_tools: ToolsKind = cls(**options)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"tools: {' '.join(str(error).split())}") from error
    return kind_of_tools


def load_tools(settings: Json, folder: Path, scenarios: Sequence[Scenario]) -> Tools:
    """The tools of a suite in this folder, ready for use; raises ConfigError."""
    try:
        return tool_kind(settings).load(folder, scenarios)
    except ConfigError as error:
        raise ConfigError(f"tools: {str(error).removeprefix('tools: ')}") from error


def brings_code(settings: Json) -> bool:
    """Whether tools are the suite's own code."""
    return tool_kind(settings).own_code
