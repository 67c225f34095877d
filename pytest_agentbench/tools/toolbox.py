"""Decision-only tools: a call is recorded in the rollout's own record and answered with a canned response. Nothing is global."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any

import fastjsonschema
import orjson

from pytest_agentbench.lib.almost_json import repaired
from pytest_agentbench.lib.json_schema import validator
from pytest_agentbench.records import Draft, Json, Program, ToolCall
from pytest_agentbench.suites.suite import Tool
from pytest_agentbench.tools.wire_names import wire_names


class Toolbox:
    """The tools of one rollout and the calls it made."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self.tools = {tool.name: tool for tool in tools}
        self.calls: list[ToolCall] = []
        self.drafts: list[Draft] = []  # of an agent that tries more than once
        self.programs: list[Program] = []  # that an agent ran which is a program
        self._wire = wire_names(self.tools)
        self._own = {wire: name for name, wire in self._wire.items()}
        self.user_turn = 1  # which message of the user is being worked on, counted from 1

    def fresh(self) -> Toolbox:
        """The same tools, with no call made yet."""
        other = Toolbox([*self.tools.values()])
        other.user_turn, other.programs = self.user_turn, self.programs
        return other

    @property
    def schemas(self) -> list[Json]:
        """The tools as a Chat Completions request carries them: real schemas, under names that every API takes."""
        return [_schema(self._wire[tool.name], tool.description, tool.parameters) for tool in self.tools.values()]

    def call(self, name: str, arguments: str, turn: int, *, repair: bool = True) -> str:
        """Records a call as what it is, and returns what the model is told: a canned result, or what was wrong.

        A tool may be called by its own name and by the one in `schemas`; recorded is its own.
        `repair` says whether arguments that are almost JSON are understood.
        """
        started = time.monotonic_ns()
        name = self._own.get(name, name)
        recorded = self._understood(name, arguments, turn, repair)
        result = f"Error: {recorded.detail}" if recorded.problem else canned_response(self.tools[name])
        self.calls.append(dataclasses.replace(recorded, user_turn=self.user_turn, started_ns=started, ended_ns=time.monotonic_ns()))
        return result

    def _understood(self, name: str, arguments: str, turn: int, repair: bool) -> ToolCall:
        meant: Json | None = None
        try:
            parsed = orjson.loads(arguments or "{}")
        except orjson.JSONDecodeError as error:
            meant = repaired(arguments) if repair else None
            parsed = error if meant is None else meant
        call = ToolCall(name, parsed if isinstance(parsed, dict) else {}, turn, raw=arguments if meant is not None else None,
                        repaired=meant is not None)  # fmt: skip
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


_SAMPLES: Mapping[str, Any] = {"integer": 100, "number": 100.5, "boolean": True, "array": [], "object": {}, "null": None}


def canned_response(tool: Tool) -> str:
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
