"""The toolbox of a rollout, through which an agent calls tools. It checks and records each call, and passes it to the tool source."""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
import time
from collections.abc import Coroutine, Iterable, Sequence
from itertools import count
from typing import Any

import fastjsonschema
import orjson

from pytest_agentbench.errors import InfraError, InjectedError, LimitReached, NoTerminal, RolloutError, ToolError
from pytest_agentbench.lib.abandoned import refuse_abandoned
from pytest_agentbench.lib.error_texts import user_place
from pytest_agentbench.lib.foreign import USUAL, Sizes, cut, size_of, too_large
from pytest_agentbench.lib.model_texts import repaired, validator
from pytest_agentbench.lib.threads import blocking
from pytest_agentbench.records import Draft, Json, Program, ToolCall
from pytest_agentbench.sandbox.sandbox import CommandRunner, Sandbox
from pytest_agentbench.suites.suite import Tool
from pytest_agentbench.tools.source import DecisionOnly, ToolSource, sample_response

LENGTH = 64
_GOOD = re.compile(rf"[a-zA-Z0-9_-]{{1,{LENGTH}}}")


def wire_names(names: Iterable[str]) -> dict[str, str]:
    """Returns tool name -> name in requests to models: the same name if all APIs accept it, otherwise a similar unique name."""
    good = {name: name for name in names if _GOOD.fullmatch(name)}
    used = set(good)
    wire = {}
    for name in names:
        wire[name] = good.get(name) or _unused_name(re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:LENGTH] or "_", used)
        used.add(wire[name])
    return wire


def _unused_name(name: str, used: set[str]) -> str:
    """Returns the name, or the first of `name_2`, `name_3`, ... that is not used."""
    if name not in used:
        return name
    numbered = (f"{name[: LENGTH - len(end)]}{end}" for end in (f"_{number}" for number in count(2)))
    return next(each for each in numbered if each not in used)


class Toolbox:
    """The tools that the agent of one rollout can call, and the list of its calls (`calls`).

    A call is added to the list when it begins, and replaced there when it ends. An abandoned call is thus recorded, too. If the tool
    source fails, the error is kept in `failures`, because an agent may catch it; `settle` raises it at the end of the rollout.
    """

    def __init__(
        self,
        tools: Sequence[Tool],
        sandbox: Sandbox | None = None,
        source: ToolSource | None = None,
        code: CommandRunner | None = None,
        sizes: Sizes = USUAL,
    ) -> None:
        self.sandbox = sandbox  # sandbox of a scenario that is a task
        self.code = code or sandbox  # sandbox for programs that a model writes
        self.source = source or DecisionOnly()  # executes calls
        self.tools = {tool.name: tool for tool in tools}
        self.calls: list[ToolCall] = []
        self.drafts: list[Draft] = []  # drafts of an agent that makes several
        self.programs: list[Program] = []  # programs that a command agent ran
        self.sizes = sizes
        self.failures: list[RolloutError] = []  # InfraError or NoTerminal if the source failed, LimitReached if a result was too large
        self.final_state: Json | None = None  # state of the tools after the agent has finished
        self._wire = wire_names(self.tools)
        self._own = {wire: name for name, wire in self._wire.items()}
        self.user_turn = 1  # number of the user's message that the agent works on, from 1
        self._made: list[tuple[Coroutine[Any, Any, str], str]] = []  # results of `call` that may not be awaited yet, and their places
        self._mirror: tuple[Toolbox, int] | None = None  # toolbox that also records the calls, and index of the first one there

    def fresh(self, *, mirrored: bool = False) -> Toolbox:
        """Returns a toolbox with the same tools, a copy of their state, and no calls, for another draft (attempt) of the agent.

        If `mirrored` is set, its calls are recorded in this toolbox, too.
        """
        other = Toolbox([*self.tools.values()], self.sandbox, self.source.copy(), self.code, self.sizes)
        other._mirror = (self, len(self.calls)) if mirrored else None
        other.user_turn, other.programs, other.failures, other._made = self.user_turn, self.programs, self.failures, self._made
        return other

    @property
    def schemas(self) -> list[Json]:
        """The `tools` of a Chat Completions request: their schemas, with names that all APIs accept."""
        return [_schema(self._wire[tool.name], tool.description, tool.parameters) for tool in self.tools.values()]

    def call(self, name: str, arguments: str, turn: int, *, repair: bool = True) -> Coroutine[Any, Any, str]:
        """Executes and records a call. Returns the text for the model: the answer of the tool, or an error if the call is invalid.

        `name` is the tool's own name or its name in `schemas`; the own name is recorded. `arguments` is the JSON text that the model
        wrote. With `repair`, text that is almost JSON is accepted. `turn` is the number of the model's answer with the call.

        Raises InfraError if the tool source fails, and LimitReached if the answer is too large.
        """
        call = self._call(name, arguments, turn, repair=repair)
        self._made[:] = [*self._unawaited(), (call, user_place(sys._getframe(1)))]
        return call

    def unawaited_call(self) -> str:
        """Returns a sentence about a call whose result the agent never awaited, or an empty text. Closes such calls."""
        forgotten = self._unawaited()
        for call, _ in forgotten:
            call.close()  # Otherwise Python warns about it when it deletes the call.
        return f"the result of tools.call was never awaited; write `await tools.call(...)`{forgotten[0][1]}" if forgotten else ""

    def _unawaited(self) -> list[tuple[Coroutine[Any, Any, str], str]]:
        return [each for each in self._made if inspect.getcoroutinestate(each[0]) == inspect.CORO_CREATED]

    async def _call(self, name: str, arguments: str, turn: int, *, repair: bool = True) -> str:
        await refuse_abandoned()
        started = time.monotonic_ns()
        call = dataclasses.replace(self.parse_call(name, arguments, turn, repair=repair), started_ns=started)
        place = len(self.calls)
        self.keep(place, call)
        try:
            if call.problem:
                return f"Error: {call.detail}"
            return self._checked_size(call.name, await self.source.call(self.tools[call.name], call.arguments))
        except ToolError as error:
            refusal = cut(str(error), self.sizes.reason)
            call = dataclasses.replace(call, refusal=refusal, injected=isinstance(error, InjectedError))
            return f"Error: {refusal}"
        except (InfraError, LimitReached, NoTerminal) as error:
            self.failures.append(error)  # The agent may catch the error, so `settle` raises it again.
            raise
        finally:
            self.keep(place, dataclasses.replace(call, ended_ns=time.monotonic_ns()))

    def _checked_size(self, name: str, result: str) -> str:
        """Returns a tool's result unchanged. Raises LimitReached if it is too large, because the agent must not get a truncated result."""
        if (size := size_of(result)) > self.sizes.tool_result:
            raise LimitReached(too_large(f"result of the tool {name!r}", size, self.sizes.tool_result, "tool_result"))
        return result

    def record(self, name: str, arguments: str, turn: int) -> str:
        """Records a call without executing it, because the agent's program has done that. Returns a placeholder for the answer."""
        call = self.parse_call(name, arguments, turn)
        self.add(call)
        return f"Error: {call.detail}" if call.problem else sample_response(self.tools[call.name])

    def settle(self) -> None:
        """Records the state of the tools after the agent has finished.

        Raises InfraError if the tool source has failed, otherwise LimitReached if a result was too large.
        """
        if failure := next((each for each in self.failures if isinstance(each, InfraError)), None):
            raise failure
        state = self.source.state()
        self.final_state = self.final_state if state is None else state
        if self.failures:
            raise self.failures[0]

    def keep(self, place: int, call: ToolCall) -> None:
        """Stores a call at the index `place` of `calls`, and in the toolbox that made this one by `fresh(mirrored=True)`, if any."""
        self.calls[place : place + 1] = [call]
        if self._mirror:
            other, first = self._mirror
            other.keep(first + place, call)

    def add(self, call: ToolCall) -> None:
        """Appends a call that was executed elsewhere to `calls`."""
        self.keep(len(self.calls), call)

    def settle_on(self, calls: Sequence[ToolCall], drafts: Sequence[Draft]) -> None:
        """Replaces the recorded calls and drafts, when an agent that made several drafts (attempts at its answer) has chosen one."""
        self.calls[:], self.drafts[:] = calls, drafts

    def parse_call(self, name: str, arguments: str, turn: int, *, repair: bool = True) -> ToolCall:
        """Parses and checks a call, without executing or recording it. Its `problem` and `detail` say what is wrong, if anything."""
        if not isinstance(arguments, str):  # A model's malformed arguments are recorded, so they must arrive as they were written.
            raise TypeError(f"tools.call takes the arguments as the JSON text of the model, not as a {type(arguments).__name__}")
        name = self._own.get(name, name)
        repaired_arguments: Json | None = None
        try:
            parsed = orjson.loads(arguments or "{}")
        except orjson.JSONDecodeError as error:
            repaired_arguments = repaired(arguments) if repair else None
            parsed = error if repaired_arguments is None else repaired_arguments
        call = ToolCall(name, parsed if isinstance(parsed, dict) else {}, turn, raw=arguments if repaired_arguments is not None else None,
                        repaired=repaired_arguments is not None, user_turn=self.user_turn)  # fmt: skip
        if name not in self.tools:
            detail = f"there is no tool {name!r}; the tools are: {', '.join(self.tools)}"
            return dataclasses.replace(call, problem="unknown_tool", detail=detail)
        if not isinstance(parsed, dict):
            what = f"not valid JSON ({parsed})" if isinstance(parsed, Exception) else f"a JSON {type(parsed).__name__}, not an object"
            detail = f"the arguments of {name} are {what}"
            return dataclasses.replace(call, problem="malformed_arguments", detail=detail, raw=arguments)
        if fault := invalid(self.tools[name], parsed):
            detail = f"the arguments of {name} do not fit its schema: {fault}"
            return dataclasses.replace(call, problem="invalid_arguments", detail=detail)
        return call


def invalid(tool: Tool, arguments: Json) -> str | None:
    """Returns why arguments do not fit the tool's schema, or None if they fit."""
    try:
        validator(orjson.dumps(tool.parameters))(arguments)
    except fastjsonschema.JsonSchemaValueException as error:
        return str(error.message)
    return None


def _schema(name: str, description: str, parameters: Json) -> Json:
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


class BlockingToolbox:
    """A toolbox for agents that are blocking code: its `call` blocks until the tool has answered.

    It is created in the event loop and used in threads.
    """

    def __init__(self, tools: Toolbox) -> None:
        self.call = blocking(tools._call)
        self._toolbox = tools

    @property
    def tools(self) -> dict[str, Tool]:
        return self._toolbox.tools

    @property
    def schemas(self) -> list[Json]:
        return self._toolbox.schemas

    @property
    def calls(self) -> list[ToolCall]:
        """The tool calls that the agent has made so far."""
        return self._toolbox.calls

    @property
    def sandbox(self) -> Sandbox | None:
        return self._toolbox.sandbox
