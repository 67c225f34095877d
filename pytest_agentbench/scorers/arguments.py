"""Compares the arguments of a call with a label. This is the one definition of "the same argument" for all scorers.

A label is an expected call of the data set. It has one of two forms: `{tool, parameters}` with one right value for each argument, or
`{tool, accepts, optional}` with several. The rules are in `docs/reference/scorers.md`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from pytest_agentbench.records import Json, ToolCall
from pytest_agentbench.scorers.matching import normalised
from pytest_agentbench.suites.suite import Tool

_NUMBER = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d{1,3})?", re.ASCII)
_NUMERIC = frozenset({"integer", "number"})
_DAY_THEN_MONTH = re.compile(r"(?P<day>\d{1,2})(?:st|nd|rd|th)?(?: of)? (?P<month>[a-z]+)\.?,? (?P<year>\d{4})", re.ASCII)
_MONTH_THEN_DAY = re.compile(r"(?P<month>[a-z]+)\.? (?P<day>\d{1,2})(?:st|nd|rd|th)?,? (?P<year>\d{4})", re.ASCII)
_SAYS_DATE = re.compile(r"\bdates?\b|\bYYYY\b", re.IGNORECASE)
_DAY_FIRST = re.compile(r"\bDD?([/.-])MM?\1YYYY\b", re.IGNORECASE)
_MONTH_FIRST = re.compile(r"\bMM?([/.-])DD?\1YYYY\b", re.IGNORECASE)
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_NAMES = ("january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november", "december")
_MONTH = {name: number for names in (_MONTHS, _NAMES) for number, name in enumerate(names, 1)} | {"sept": 9}


def same(expected: Any, actual: Any, schema: Json) -> bool:
    """Returns whether two values that are not lists or objects mean the same under a JSON schema. `{}` allows any value."""
    if isinstance(expected, bool) or isinstance(actual, bool) or expected is None or actual is None:
        return expected is actual
    if isinstance(schema.get("enum"), list):
        one, other = _of_enum(expected, schema["enum"]), _of_enum(actual, schema["enum"])
        if one in schema["enum"] or other in schema["enum"]:
            return bool(one == other)
    for union in ("anyOf", "oneOf"):
        if isinstance(schema.get(union), list):
            around = {name: value for name, value in schema.items() if name not in ("anyOf", "oneOf")}
            return any(same(expected, actual, {**around, **each}) for each in schema[union] if isinstance(each, dict))
    if isinstance(expected, str) and isinstance(actual, str) and _is_date(schema):
        one, other = _moment(expected, schema), _moment(actual, schema)
        if one is not None and other is not None:
            return type(one) is type(other) and one == other
    return _same_scalar(expected, actual, types_of(schema))


def types_of(schema: Json) -> frozenset[str]:
    """Returns the types that a JSON schema allows, or an empty set if it has no `type`."""
    kind = schema.get("type")
    return frozenset(map(str, kind)) if isinstance(kind, list) else frozenset({str(kind)} if kind else ())


def _same_scalar(expected: Any, actual: Any, types: frozenset[str]) -> bool:
    texts = isinstance(expected, str) and isinstance(actual, str)
    if texts and not (types & _NUMERIC and "string" not in types):
        return plain(expected) == plain(actual)
    if types & {"string"} and not types & _NUMERIC and (isinstance(expected, str) or isinstance(actual, str)):
        return plain(_text(expected)) == plain(_text(actual))  # "0042" is not 42 if the schema requires a string.
    one, other = _number(expected), _number(actual)
    if one is None or other is None:
        return texts and plain(expected) == plain(actual)
    return one == other


def plain(text: str) -> str:
    """Returns a text in lower case, without outer spaces, and with single inner spaces."""
    return " ".join(text.split()).casefold()


def _text(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def _number(value: Any) -> Decimal | None:
    """Returns the exact number that a value is or contains as text, or None."""
    if isinstance(value, str) and not _NUMBER.fullmatch(value.strip()):
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return None
    try:
        return Decimal(value.strip() if isinstance(value, str) else repr(value))
    except InvalidOperation:  # The value is a list or an object.
        return None


def _of_enum(value: Any, values: list[Any]) -> Any:
    """Returns the enum value that differs from a value only in case or spaces. Returns the value itself if there is none, or several."""
    if value in values:
        return value
    alike = [each for each in values if not isinstance(each, bool) and plain(_text(each)) == plain(_text(value))]
    return alike[0] if len(alike) == 1 else value


def _is_date(schema: Mapping[str, Any]) -> bool:
    return schema.get("format") in ("date", "date-time") or bool(_SAYS_DATE.search(str(schema.get("description", ""))))


def _moment(text: str, schema: Mapping[str, Any]) -> date | datetime | None:
    """Parses a text as a date, or date and time: in ISO form, in words or in figures. Returns None if it is not a date, or ambiguous."""
    text = " ".join(text.split())
    for read in (date.fromisoformat, datetime.fromisoformat):
        try:
            return read(text)
        except ValueError:
            continue
    return _in_words(text) or _in_figures(text, str(schema.get("description", "")))


def _in_words(text: str) -> date | None:
    """Parses `5 March 2026`, `5th of Mar. 2026`, `March 5, 2026`, `Thursday, March 5th 2026`."""
    words = re.sub(r"^[a-z]+day,? ", "", text.casefold())
    match = _DAY_THEN_MONTH.fullmatch(words) or _MONTH_THEN_DAY.fullmatch(words)
    if match and match["month"] in _MONTH:
        return _day(int(match["year"]), _MONTH[match["month"]], int(match["day"]))
    return None


def _in_figures(text: str, description: str) -> date | None:
    """Parses a date in figures, such as `2026/3/5` or `5.3.2026`. Returns None for other texts and ambiguous dates.

    `03/05/2026` is ambiguous, unless the description of the parameter says whether the day or the month is first.
    """
    if match := re.fullmatch(r"(\d{4})[/.-](\d{1,2})[/.-](\d{1,2})", text, re.ASCII):
        return _day(*map(int, match.groups()))
    if not (match := re.fullmatch(r"(\d{1,2})([/.-])(\d{1,2})\2(\d{4})", text, re.ASCII)):
        return None
    first, second, year = int(match[1]), int(match[3]), int(match[4])
    day_first, month_first = _DAY_FIRST.search(description), _MONTH_FIRST.search(description)
    if day_first or (match[2] == "." and not month_first):
        return _day(year, second, first)
    if month_first:
        return _day(year, first, second)
    one, other = _day(year, second, first), _day(year, first, second)
    return (one or other) if one is None or other is None or one == other else None


def _day(year: int, month: int, day: int) -> date | None:
    try:
        return date(year, month, day)
    except ValueError:
        return None


_PATTERN = frozenset({"accepts", "optional"})


def fits(call: ToolCall, label: Json, tool: Tool | None = None) -> str | None:
    """Returns how a call differs from a label, for example `city is "Rome", expected "Paris"`, or None if it fits.

    `tool` is the tool that the label names. If it is None, values are compared without a schema.
    """
    if normalised(call.name) != normalised(str(label["tool"])):
        return f"it is a call of {call.name or repr('')}"
    return "; ".join(dict.fromkeys(faults(call, label, tool).values())) or None


def faults(call: ToolCall, label: Json, tool: Tool | None = None) -> dict[str, str]:
    """Returns argument -> how it differs from the label, for a call of the label's tool. Empty if all arguments fit."""
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
    """Returns how an argument with a comparison mode (`exact`, `ignore`, `pattern`) differs from the label. Empty if it fits."""
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
    """Returns whether two values are the same JSON: true is not 1, and 5 is not 5.0."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def accepted(label: Json) -> dict[str, list[Any]]:
    """Returns argument -> right values, for a label with `parameters` or with `accepts`.

    Arguments that are not compared (mode `ignore`) are left out.
    """
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
    """Returns whether an actual value equals the expected one, or fits it if that has the form `{accepts: {field: [right values]}}`.

    Fields of objects and items of lists are compared by their own schemas.
    """
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
    """Returns the JSON schema of a field, given that of the object. Returns an empty schema if there is none."""
    properties = _branch(schema, "properties").get("properties") or {}
    return _as_schema(properties.get(name, schema.get("additionalProperties")))


def _item(schema: Json, at: int) -> Json:
    """Returns the JSON schema of the item at a position, given that of the list. Returns an empty schema if there is none."""
    schema = _branch(schema, "prefixItems", "items")
    first = schema.get("prefixItems") or ()
    return _as_schema(first[at] if at < len(first) else schema.get("items"))


def _branch(schema: Json, *keys: str) -> Json:
    """Returns the first JSON Schema that has one of the keys: `schema` itself, or else one of its alternatives (`anyOf`, `oneOf`).

    Returns an empty schema if none has one.
    """
    branches = [schema, *schema.get("anyOf", ()), *schema.get("oneOf", ())]
    return next((_as_schema(each) for each in branches if any(key in _as_schema(each) for key in keys)), {})


def _as_schema(value: Any) -> Json:
    return value if isinstance(value, dict) else {}


def _shown(value: Any) -> str:
    if isinstance(value, dict) and _is_pattern(value):
        fields = (f"{json.dumps(name)}: {' or '.join(map(_shown, values))}" for name, values in value["accepts"].items())
        return f"{{{', '.join(fields)}}}"
    return json.dumps(value, ensure_ascii=False, default=str)
