"""Canned answers: tools that are answered as suite.yaml says, at once or late, and now and then with an error."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pytest_agentbench.errors import ConfigError, InjectedError, unknown_name
from pytest_agentbench.records import Json
from pytest_agentbench.suites.suite import Scenario, Tool, toolsets
from pytest_agentbench.tools.source import ToolSource


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


def answered(source: ToolSource, answers: Mapping[str, CannedAnswer], scenario: Scenario, trial: int) -> ToolSource:
    """The source of a rollout with canned answers before it, where there are any."""
    return AnsweredSource(source, answers, scenario.id, trial) if answers else source


class AnsweredSource:
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
        return AnsweredSource(self._source.copy(), self._answers, self._scenario, self._trial, self._calls)
