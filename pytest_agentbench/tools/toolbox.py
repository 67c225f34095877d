"""The tools of one rollout, under names that every API takes.

Each call is recorded in the rollout's own record and carried out by the source. Nothing is global.
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Iterable, Sequence
from itertools import count

import fastjsonschema
import orjson

from pytest_agentbench.errors import InfraError, InjectedError, LimitReached, RolloutError, ToolError
from pytest_agentbench.lib.abandoned import refuse_abandoned
from pytest_agentbench.lib.foreign import USUAL, Sizes, cut, size_of, too_large
from pytest_agentbench.lib.json_schema import validator
from pytest_agentbench.lib.model_texts import repaired
from pytest_agentbench.lib.threads import blocking
from pytest_agentbench.records import Draft, Json, Program, ToolCall
from pytest_agentbench.sandbox.sandbox import CommandRunner, Sandbox
from pytest_agentbench.suites.suite import Tool
from pytest_agentbench.tools.source import DecisionOnly, ToolSource, sample_response

LENGTH = 64
_GOOD = re.compile(rf"[a-zA-Z0-9_-]{{1,{LENGTH}}}")


def wire_names(names: Iterable[str]) -> dict[str, str]:
    """Name -> what it is called in requests: itself where the rule allows it, else one that no other tool has."""
    good = {name: name for name in names if _GOOD.fullmatch(name)}
    used = set(good)
    wire = {}
    for name in names:
        wire[name] = good.get(name) or _unused_name(re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:LENGTH] or "_", used)
        used.add(wire[name])
    return wire


def _unused_name(name: str, used: set[str]) -> str:
    """The name, or the first of `name_2`, `name_3`, ... that nobody has."""
    if name not in used:
        return name
    numbered = (f"{name[: LENGTH - len(end)]}{end}" for end in (f"_{number}" for number in count(2)))
    return next(each for each in numbered if each not in used)


class Toolbox:
    """The tools of one rollout and the calls it made."""

    def __init__(
        self,
        tools: Sequence[Tool],
        sandbox: Sandbox | None = None,
        source: ToolSource | None = None,
        code: CommandRunner | None = None,
        sizes: Sizes = USUAL,
    ) -> None:
        self.sandbox = sandbox  # of a scenario that is a task
        self.code = code or sandbox  # where programs run that a model writes
        self.source = source or DecisionOnly()  # carries calls out
        self.tools = {tool.name: tool for tool in tools}
        self.calls: list[ToolCall] = []
        self.drafts: list[Draft] = []  # of an agent that tries more than once
        self.programs: list[Program] = []  # that an agent ran which is a program
        self.sizes = sizes
        self.failures: list[RolloutError] = []  # InfraError if the source failed, LimitReached for a result that is too large
        self.final_state: Json | None = None  # of the tools, once the agent is done
        self._wire = wire_names(self.tools)
        self._own = {wire: name for name, wire in self._wire.items()}
        self.user_turn = 1  # which message of the user is being worked on, counted from 1
        self._mirror: tuple[Toolbox, int] | None = None  # who records the calls too, and from which place on

    def fresh(self, *, mirrored: bool = False) -> Toolbox:
        """The same tools in the same state, with no call made yet; `mirrored`: its calls are recorded here as well, as they are made."""
        other = Toolbox([*self.tools.values()], self.sandbox, self.source.copy(), self.code, self.sizes)
        other._mirror = (self, len(self.calls)) if mirrored else None
        other.user_turn, other.programs, other.failures = self.user_turn, self.programs, self.failures
        return other

    @property
    def schemas(self) -> list[Json]:
        """The tools as a Chat Completions request carries them: real schemas, under names that every API takes."""
        return [_schema(self._wire[tool.name], tool.description, tool.parameters) for tool in self.tools.values()]

    async def call(self, name: str, arguments: str, turn: int, *, repair: bool = True) -> str:
        """Records a call as what it is, and returns what the model is told: the tool's answer, or what was wrong.

        A tool may be called by its own name and by the one in `schemas`; recorded is its own.
        `repair` says whether arguments that are almost JSON are understood.
        A call has its place in the record when it is made: one that nobody waits for any more is in it, too.
        """
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
        except (InfraError, LimitReached) as error:
            self.failures.append(error)  # an agent may keep it for itself
            raise
        finally:
            self.keep(place, dataclasses.replace(call, ended_ns=time.monotonic_ns()))

    def _checked_size(self, name: str, result: str) -> str:
        """Returns the result of a tool. Raises LimitReached if it is too large, because the agent must not be given half of it."""
        if (size := size_of(result)) > self.sizes.tool_result:
            raise LimitReached(too_large(f"result of the tool {name!r}", size, self.sizes.tool_result, "tool_result"))
        return result

    def record(self, name: str, arguments: str, turn: int) -> str:
        """Records a call that was carried out elsewhere, nobody knows when; returns what stands for its answer."""
        call = self.parse_call(name, arguments, turn)
        self.add(call)
        return f"Error: {call.detail}" if call.problem else sample_response(self.tools[call.name])

    def settle(self) -> None:
        """Records the state of the tools. Raises InfraError if they failed, and otherwise LimitReached if a result was too large."""
        if failure := next((each for each in self.failures if isinstance(each, InfraError)), None):
            raise failure
        state = self.source.state()
        self.final_state = self.final_state if state is None else state
        if self.failures:
            raise self.failures[0]

    def keep(self, place: int, call: ToolCall) -> None:
        """Puts a call at its place in the record. All calls come here, or to `settle_on`."""
        self.calls[place : place + 1] = [call]
        if self._mirror:
            other, first = self._mirror
            other.keep(first + place, call)

    def add(self, call: ToolCall) -> None:
        """Records one more call, that was carried out elsewhere."""
        self.keep(len(self.calls), call)

    def settle_on(self, calls: Sequence[ToolCall], drafts: Sequence[Draft]) -> None:
        """Makes these the record, of an agent that has chosen among its tries."""
        self.calls[:], self.drafts[:] = calls, drafts

    def parse_call(self, name: str, arguments: str, turn: int, *, repair: bool = True) -> ToolCall:
        """A call as what it is, which is not recorded."""
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
    """What is wrong with arguments by the tool's schema, or None."""
    try:
        validator(orjson.dumps(tool.parameters))(arguments)
    except fastjsonschema.JsonSchemaValueException as error:
        return str(error.message)
    return None


def _schema(name: str, description: str, parameters: Json) -> Json:
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


class BlockingToolbox:
    """A rollout's tools for code that blocks: `call` returns when the tool has answered. Made in the event loop, used in threads."""

    def __init__(self, tools: Toolbox) -> None:
        self.call = blocking(tools.call)
        self._toolbox = tools

    @property
    def tools(self) -> dict[str, Tool]:
        return self._toolbox.tools

    @property
    def schemas(self) -> list[Json]:
        return self._toolbox.schemas

    @property
    def calls(self) -> list[ToolCall]:
        """Those made so far."""
        return self._toolbox.calls

    @property
    def sandbox(self) -> Sandbox | None:
        return self._toolbox.sandbox
