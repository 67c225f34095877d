"""The agent that is a function of the user's: it gets what its parameters name, and keyword-only ones are its options."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pytest_agentbench.errors import AgentError, ConfigError
from pytest_agentbench.lib.cut_marks import beginning
from pytest_agentbench.lib.import_path import options_of, with_options
from pytest_agentbench.lib.threads import in_thread, is_async
from pytest_agentbench.llm.client import LLM
from pytest_agentbench.records import Answer, Json
from pytest_agentbench.suites.suite import Scenario
from pytest_agentbench.tools.toolbox import BlockingToolbox, Toolbox

#: What a function may ask for, by the names of its parameters.
GIVEN = ("scenario", "tools", "llm", "client")


@dataclass(frozen=True)
class FunctionAgent:
    """A function, async or blocking, with its options given."""

    function: Callable[..., object]
    parameters: tuple[str, ...]  # among GIVEN
    options: Json = field(default_factory=dict)  # defaults included

    async def run(self, scenario: Scenario, llm: LLM, tools: Toolbox) -> Answer:
        arguments = {"scenario": scenario, "tools": tools if is_async(self.function) else BlockingToolbox(tools), "llm": llm}
        if "client" not in self.parameters:
            return await self._answer(arguments)
        if is_async(self.function):
            async with llm.openai() as client:
                return await self._answer({**arguments, "client": client})
        with llm.openai_sync() as blocking_client:
            return await self._answer({**arguments, "client": blocking_client})

    async def _answer(self, arguments: Mapping[str, object]) -> Answer:
        call = functools.partial(self.function, **{name: arguments[name] for name in self.parameters}, **self.options)
        answer: Any = await (call() if is_async(self.function) else in_thread(call))  # type: ignore[misc]  # an async one's is awaitable
        if answer is None or isinstance(answer, str):
            return Answer(answer or "")
        if isinstance(answer, Answer):
            return answer
        raise AgentError(f"the agent returned {beginning(str(answer), 80)!r} ({type(answer).__name__}), not an Answer, a text or None")


def function_agent(kind: str, function: Callable[..., object], options: Json) -> FunctionAgent:
    """The agent that a function is; raises ConfigError for a parameter that nobody knows, and for an option that is missing."""
    with_options("agent", kind, function, options)
    defaults = {name: value for name, value in options_of(function).items() if value is not inspect.Parameter.empty}
    parameters = [each for each in inspect.signature(function).parameters.values() if each.kind is not inspect.Parameter.KEYWORD_ONLY]
    for each in parameters:
        if each.name not in GIVEN or each.kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD:
            known = f"known: {', '.join(GIVEN)}; its options are keyword-only, behind a `*`"
            raise ConfigError(f"agent: {kind!r} has a parameter that nobody fills: {each}; {known}")
    return FunctionAgent(function, tuple(each.name for each in parameters), {**defaults, **options})
