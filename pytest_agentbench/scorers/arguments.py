"""Whether a call carries the arguments that a label wants: the one definition of "the same argument" for all scorers.

A label is `{tool, parameters: {name: value}}`, or `{tool, accepts: {name: [values]}, optional: [names]}` where several values are
right or an argument may be left out. A label with neither says nothing about arguments. A value may have the second form as well,
without `tool`: an object whose fields may each have several values. It may stand inside lists and objects.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from pytest_agentbench.records import Json, ToolCall
from pytest_agentbench.scorers.names import normalised
from pytest_agentbench.scorers.values import same
from pytest_agentbench.suites.suite import Tool

_PATTERN = frozenset({"accepts", "optional"})


def fits(call: ToolCall, label: Json, tool: Tool | None = None) -> str | None:
    """Why a call is not the one that a label expects, as half a sentence (`city is "Rome", expected "Paris"`); None when it is.

    `tool` is the tool that the label names; without it values are compared without a schema.
    """
    if normalised(call.name) != normalised(str(label["tool"])):
        return f"it is a call of {call.name or repr('')}"
    return "; ".join(dict.fromkeys(faults(call, label, tool).values())) or None


def faults(call: ToolCall, label: Json, tool: Tool | None = None) -> dict[str, str]:
    """Argument -> what is wrong with it, of a call of the right tool. Empty when all is well."""
    if "accepts" not in label and "parameters" not in label:
        return {}
    if call.problem == "malformed_arguments":
        return dict.fromkeys([*accepted(label)] or [""], "the arguments could not be parsed")
    modes = label.get("modes") or {}
    plain = {name: values for name, values in accepted(label).items() if name not in modes}
    by_name = _faults(plain, _optional(label), _without(call.arguments, modes), tool.parameters if tool else {})
    for name, mode in modes.items():
        if fault := _fault_by(mode, name, label, call.arguments):
            by_name[name] = fault
    return dict(sorted(by_name.items()))


def _without(arguments: Json, modes: Json) -> Json:
    return {name: value for name, value in arguments.items() if name not in modes}


def _fault_by(mode: str, name: str, label: Json, actual: Json) -> str:
    """What is wrong with an argument that is compared in a mode of its own; empty when it is right."""
    values = accepted(label).get(name)
    if mode == "ignore" or (values is None and name not in actual):
        return ""
    if values is None:
        return f"{name} is {_shown(actual[name])}, expected to be left out"
    expected = f"expected {'to match ' if mode == 'pattern' else ''}{' or '.join(map(_shown, values)) or 'no value'}"
    if name not in actual:
        return "" if name in _optional(label) else f"{name} is missing, {expected}"
    value = actual[name]
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    right = any(re.fullmatch(each, text) if mode == "pattern" else _identical(each, value) for each in values)
    return "" if right else f"{name} is {_shown(value)}, {expected}"


def _identical(one: Any, other: Any) -> bool:
    """Whether two values are the same JSON: true is not 1, and 5 is not 5.0."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def accepted(label: Json) -> dict[str, list[Any]]:
    """Argument -> the values that are right, of a label in either form, without those that are ignored."""
    modes = label.get("modes") or {}
    accepts = label["accepts"] if "accepts" in label else {name: [value] for name, value in (label.get("parameters") or {}).items()}
    return {name: list(values) for name, values in accepts.items() if modes.get(name) != "ignore"}


def _optional(label: Json) -> frozenset[str]:
    return frozenset(label.get("optional") or ())


def _faults(expected: Mapping[str, list[Any]], optional: frozenset[str], actual: Json, schema: Json) -> dict[str, str]:
    by_name: dict[str, str] = {}
    for name, values in expected.items():
        field = _field(schema, name)
        if name in actual:
            if not any(_matches(value, actual[name], field) for value in values):
                by_name[name] = f"{name} is {_shown(actual[name])}, expected {' or '.join(map(_shown, values)) or 'no value'}"
        elif name not in optional and not ("default" in field and any(_matches(value, field["default"], field) for value in values)):
            by_name[name] = f"{name} is missing, expected {' or '.join(map(_shown, values)) or 'no value'}"
    for name in actual.keys() - expected.keys():
        field = _field(schema, name)
        if not ("default" in field and _matches(field["default"], actual[name], field)):
            by_name[name] = f"{name} is {_shown(actual[name])}, expected to be left out"
    return dict(sorted(by_name.items()))


def _matches(expected: Any, actual: Any, schema: Json) -> bool:
    """Whether a value is the one that is accepted. Objects and lists are compared by their contents, under the schemas of these."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        if _is_pattern(expected):
            return not _faults(accepted(expected), _optional(expected), actual, schema)
        return not _faults({name: [value] for name, value in expected.items()}, frozenset(), actual, schema)
    if isinstance(expected, list) and isinstance(actual, list):
        pairs = zip(expected, actual, strict=False)
        return len(expected) == len(actual) and all(_matches(*pair, _item(schema, at)) for at, pair in enumerate(pairs))
    if isinstance(expected, dict | list) or isinstance(actual, dict | list):
        return False
    return same(expected, actual, schema)


def _is_pattern(value: Json) -> bool:
    return "accepts" in value and value.keys() <= _PATTERN and isinstance(value["accepts"], dict)


def _field(schema: Json, name: str) -> Json:
    """The schema of an object's field; empty when there is none."""
    properties = _branch(schema, "properties").get("properties") or {}
    return _as_schema(properties.get(name, schema.get("additionalProperties")))


def _item(schema: Json, at: int) -> Json:
    """The schema of a list's item."""
    schema = _branch(schema, "prefixItems", "items")
    first = schema.get("prefixItems") or ()
    return _as_schema(first[at] if at < len(first) else schema.get("items"))


def _branch(schema: Json, *keys: str) -> Json:
    """The schema itself, or the first of its alternatives, that has one of the keys."""
    branches = [schema, *schema.get("anyOf", ()), *schema.get("oneOf", ())]
    return next((_as_schema(each) for each in branches if any(key in _as_schema(each) for key in keys)), {})


def _as_schema(value: Any) -> Json:
    return value if isinstance(value, dict) else {}


def _shown(value: Any) -> str:
    if isinstance(value, dict) and _is_pattern(value):
        fields = (f"{json.dumps(name)}: {' or '.join(map(_shown, values))}" for name, values in value["accepts"].items())
        return f"{{{', '.join(fields)}}}"
    return json.dumps(value, ensure_ascii=False, default=str)
