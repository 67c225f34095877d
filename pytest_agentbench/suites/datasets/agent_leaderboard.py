"""The data format of the agent leaderboard: a JSON list (or JSON lines) of customer messages, tools and expected calls.

An entry has id, question, ground_truth, metadata, user_goals, cluster, available_tools and expected_tool_calls. If tools are
executed, it also has their state and final_state. If all entries have the same tools, these can be in one file, tools.json.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pytest_agentbench.errors import ConfigError, unknown_key
from pytest_agentbench.lib.json_text import bounded_json, bounded_text, json_in
from pytest_agentbench.records import Json
from pytest_agentbench.suites.suite import Scenario, Tool

Kind = TypeVar("Kind", dict[str, Any], list[Any], str)

#: The keys of an entry, of a tool, and of the two forms of an expected call. `ground_truth` is in the public data but is not read.
ENTRY = ("id", "question", "ground_truth", "metadata", "user_goals", "cluster", "available_tools", "expected_tool_calls",
         "state", "final_state")  # fmt: skip
TOOL = ("title", "description", "type", "properties", "required", "response_schema")
CALL = ("tool", "parameters", "goal")
CALL_WITH_SEVERAL = ("tool", "accepts", "optional", "goal")

SCHEMA = ("type", "properties", "required")  # keys of the arguments' schema that are keys of the tool
SHOWN = 400  # maximum length of a tool in a message, characters

_WORDS = {dict: "an object", list: "a list", str: "a text"}


def load(file: Path, tools_file: Path | None = None) -> Iterator[Scenario]:
    """Yields the scenarios of a file, in its order. Raises ConfigError with the file and the line or entry of an error."""
    shared = _tools(_parse(bounded_text(tools_file), tools_file), f"{tools_file}") if tools_file else None
    known: dict[str, tuple[Tool, ...]] = {}
    for where, entry in entries(file):
        yield _scenario(entry, where, shared, known)


def entries(file: Path) -> Iterator[tuple[str, Json]]:
    """Yields (position, entry). The position is a text for messages: `file:line` for JSON lines, and `file: entry 3` for a JSON list."""
    text = bounded_text(file)
    if not text.strip():
        raise ConfigError(f"{file}: is empty; it must contain a JSON list of scenarios, or one JSON object per line")
    if file.suffix == ".jsonl":
        for number, line in enumerate(text.split("\n"), 1):  # splitlines() would also split at U+2028, which JSON strings may contain.
            if line.strip():
                yield f"{file}:{number}", _parse(line, file, number)
        return
    data = _parse(text, file)
    if not isinstance(data, list):
        raise ConfigError(f"{file}: contains a JSON {type(data).__name__}, but must contain a list of scenarios")
    for number, entry in enumerate(data, 1):
        yield f"{file}: entry {number}", entry


def _parse(text: str, file: Path, line: int | None = None) -> Any:
    where = f"{file}:{line}" if line else f"{file}"

    def unique(pairs: list[tuple[str, Any]]) -> Json:
        data = dict(pairs)
        if len(data) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise ConfigError(f"{where}: the key {twice!r} is there twice in one entry; keep one of them")
        return data

    return json_in(file, text, line, unique)


def _refuse_unknown(data: Json, known: Sequence[str], where: str) -> None:
    """Raises ConfigError for an unknown key. Otherwise a misspelt key would silently drop an expected call or a schema."""
    for name in data:
        if name not in known:
            raise ConfigError(f"{where}: {unknown_key(name, known)}")


def _scenario(entry: Any, where: str, shared: tuple[Tool, ...] | None, known: dict[str, tuple[Tool, ...]]) -> Scenario:
    if not isinstance(entry, dict):
        raise ConfigError(f"{where}: is a JSON {type(entry).__name__}, must be an object")
    _refuse_unknown(entry, ENTRY, where)
    for name in ("id", "question"):
        if not isinstance(entry.get(name), str) or not entry[name]:
            raise ConfigError(f"{where}: {name!r} must be a text that is not empty, not {entry.get(name)!r}")
    return Scenario(
        id=entry["id"],
        messages=({"role": "user", "content": entry["question"]},),
        tools=_entry_tools(entry, where, shared, known),
        expected=tuple(_expected(call, where) for call in _optional(entry, "expected_tool_calls", list, where)),
        cluster=_optional(entry, "cluster", str, where) or None,
        state=_optional(entry, "state", dict, where),
        final_state=_optional(entry, "final_state", dict, where) if entry.get("final_state") is not None else None,
        metadata={**_optional(entry, "metadata", dict, where), "user_goals": _optional(entry, "user_goals", list, where)},
    )


def _entry_tools(entry: Json, where: str, shared: tuple[Tool, ...] | None, known: dict[str, tuple[Tool, ...]]) -> tuple[Tool, ...]:
    """Returns the entry's tools. Entries with equal tools share one tuple, so that ten thousand entries need little memory."""
    if "available_tools" not in entry:
        if shared is None:
            raise ConfigError(f"{where}: no 'available_tools'; add them, or name a tools file in suite.yaml with dataset.tools")
        return shared
    text = json.dumps(entry["available_tools"])
    if text not in known:
        known[text] = _tools(entry["available_tools"], where)
    return known[text]


def _tools(data: Any, where: str) -> tuple[Tool, ...]:
    if not isinstance(data, list):
        raise ConfigError(f"{where}: the tools must be a list, not {type(data).__name__}")
    tools = tuple(_tool(tool, where) for tool in data)
    names = [tool.name for tool in tools]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ConfigError(f"{where}: the tool {min(twice)!r} is there twice; remove one of the two")
    return tools


def _tool(tool: Any, where: str) -> Tool:
    if isinstance(tool, dict) and "title" not in tool and (example := _in_own_format(tool)):
        raise ConfigError(f"{where}: a tool is in OpenAI's form; write it as {example}")
    if not isinstance(tool, dict) or not isinstance(tool.get("title"), str) or not tool["title"]:
        raise ConfigError(f"{where}: a tool has no 'title'; add it, because it is the tool's name: {str(tool)[:80]}")
    where = f"{where}: tool {tool['title']!r}"
    _refuse_unknown(tool, TOOL, where)
    response_schema = _schema(tool, "response_schema", where)
    _optional(response_schema, "properties", dict, f"{where}: response_schema")
    return Tool(
        name=tool["title"],
        description=_optional(tool, "description", str, where),
        parameters={
            "type": tool.get("type", "object"),
            "properties": _schema(tool, "properties", where),
            "required": tool.get("required", []),
            "additionalProperties": False,
        },
        response_schema=response_schema,
    )


def _in_own_format(tool: Json) -> str:
    """Returns a tool as it must be written in the format `agent-leaderboard`, to be shown in an error message.

    The tool is in OpenAI's form (Chat Completions or Responses). For anything else, the result is empty.
    """
    function = tool.get("function", tool)
    if tool.get("type") != "function" or not isinstance(function, dict) or not isinstance(function.get("name"), str):
        return ""
    parameters = function.get("parameters")
    schema = parameters if isinstance(parameters, dict) else {}
    facts = {"title": function["name"], "description": function.get("description"), **{name: schema.get(name) for name in SCHEMA}}
    return json.dumps({name: value for name, value in facts.items() if value is not None}, ensure_ascii=False)[:SHOWN]


def _schema(tool: Json, name: str, where: str) -> Json:
    """Returns the schema under a key of a tool. It is an object or, as in the public data, a text that contains JSON."""
    if isinstance(tool.get(name), str):
        try:
            tool = {name: bounded_json(tool[name])}
        except ValueError as error:
            raise ConfigError(f"{where}: {name!r} is a text that is not valid JSON; write the schema as an object: {error}") from error
    return _optional(tool, name, dict, where)


def _expected(call: Any, where: str) -> Json:
    if not isinstance(call, dict) or not isinstance(call.get("tool"), str):
        raise ConfigError(f"{where}: an expected call must be {{tool, parameters, goal}}, not {str(call)[:80]}")
    where = f"{where}: expected call of {call['tool']}"
    return {"tool": call["tool"], **_arguments(call, where), "goal": _optional(call, "goal", str, where)}


def _arguments(call: Json, where: str) -> Json:
    """Returns the keys of an expected call that say which arguments are right: `parameters`, or `accepts` and `optional`."""
    if "accepts" not in call:
        if "optional" in call:
            raise ConfigError(f"{where}: has 'optional' without 'accepts'; add 'accepts', the right values of arguments (may be {{}})")
        _refuse_unknown(call, CALL, where)
        return {"parameters": _optional(call, "parameters", dict, where)}
    if "parameters" in call:
        raise ConfigError(f"{where}: has both 'parameters' and 'accepts'; keep only one of them")
    _refuse_unknown(call, CALL_WITH_SEVERAL, where)
    accepts = _optional(call, "accepts", dict, where)
    for name in accepts:
        _optional(accepts, name, list, f"{where}: accepts")
    return {"accepts": accepts, "optional": _optional(call, "optional", list, where)}


def _optional(data: Json, name: str, kind: type[Kind], where: str) -> Kind:
    """Returns the value of an optional key, or an empty value of the type `kind` if the key is missing or null.

    Raises ConfigError if the value has another type.
    """
    value = data.get(name)
    if value is None:
        return kind()
    if not isinstance(value, kind):
        raise ConfigError(f"{where}: {name!r} must be {_WORDS[kind]}, not {str(value)[:80]}")
    return value
