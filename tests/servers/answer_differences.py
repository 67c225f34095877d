"""Finds the differing fields of two answers, and reads those that docs/backends/stream-upgrade.md lists."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pytest_agentbench.records import Json

PAGE = Path(__file__).parents[2] / "docs" / "backends/stream-upgrade.md"

#: Fields whose values change with every request. Only their presence, their type and whether they are empty are compared.
EACH_TIME_ANOTHER = frozenset(
    {
        "id",
        "created",
        "choices[].message.tool_calls[].id",
        "nvext.timing",
        "created_at",
        "completed_at",
        "output[].id",
        "output[].call_id",
        "content[].id",
        "content[].signature",
    }
)

ABSENT = "absent"  # the word for a missing field in a table

LONGEST = 30  # characters of a value that a table shows


class Row(NamedTuple):
    """A field that differs, with its values as the table shows them."""

    field: str
    whole: str  # in the server's answer without streaming
    streamed: str  # in the chunks of its stream; a value has priority over null
    tap: str  # in the answer that the tap assembles from the stream


def differences(whole: Any, tap: Any, streamed: dict[str, str]) -> set[Row]:
    """Returns the fields in which the server's own complete answer and that of the tap differ."""
    return {
        Row(field, shown(one, field), streamed.get(field, ABSENT), shown(other, field)) for field, one, other in _differing(whole, tap, "")
    }


def chunk_fields(stream: bytes) -> dict[str, str]:
    """Returns the value of each field in the chunks of a stream, under the name of the field in a complete answer."""
    found: dict[str, str] = {}
    for line in stream.splitlines():
        if line.startswith(b"data: {"):
            for field, value in _fields(_as_answer(json.loads(line[6:])), ""):
                name = field.replace("[].delta", "[].message")
                as_shown = shown(value, name)
                if value and isinstance(value, str) and found.get(name, ABSENT) not in (ABSENT, "`null`", '`""`', as_shown):
                    found[name] = "in pieces"
                elif value is not None or name not in found:
                    found[name] = as_shown
    return found


def shown(value: object, field: str) -> str:
    """Returns a value as a table shows it.

    Lists, objects, long texts and values that change every time are shown by their kind; tuples contain types.
    """
    if value is ABSENT:
        return ABSENT
    if isinstance(value, tuple):
        return f"`{', '.join(value)}`" if any(value) else f"{len(value)} elements"
    if isinstance(value, list | dict) and value:
        return "a list" if isinstance(value, list) else "an object"
    text = json.dumps(value)
    if (value and field in EACH_TIME_ANOTHER) or len(text) > LONGEST:
        return "a text" if isinstance(value, str) else "a number"
    return f"`{text}`"


def table(title: str) -> list[tuple[str, Row]]:
    """Returns the rows of the page for a server and an API, each with its requests."""
    lines = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in _section(title).splitlines() if line.startswith("| ")]
    return [(requests, Row(field.strip("`"), *values)) for requests, field, *values in lines[1:]]


def is_of(requests: str, case: str) -> bool:
    """Returns whether a row applies to a case. Its first cell is `every`, `every but ...` or a list of cases with semicolons."""
    return (case in named(requests)) != requests.startswith("every")


def named(requests: str) -> list[str]:
    """Returns the cases that a row names."""
    return [case for case in requests.removeprefix("every").removeprefix(" but ").split("; ") if case]


def each_time_another() -> set[str]:
    """Returns the fields that the page lists as changing with every request."""
    return set(re.findall(r"^- `(.+?)`", _section("Fields that differ in every answer"), re.MULTILINE))


def _section(title: str) -> str:
    _, _, rest = PAGE.read_text().partition(f"\n## {title}\n")
    assert rest, f"{PAGE.name} has no section {title!r}"
    return rest.partition("\n## ")[0]


def _differing(one: Any, other: Any, field: str) -> Iterator[tuple[str, Any, Any]]:
    if field in EACH_TIME_ANOTHER:
        if shown(one, field) != shown(other, field):
            yield field, one, other
    elif isinstance(one, dict) and isinstance(other, dict):
        for name in one.keys() | other.keys():
            inner = f"{field}.{name}".lstrip(".")
            yield from _differing(one.get(name, ABSENT), other.get(name, ABSENT), inner)
    elif isinstance(one, list) and isinstance(other, list) and one and other:
        yield from _differing_lists(one, other, field)
    elif not _equal(one, other):
        yield field, one, other


def _differing_lists(one: list[Any], other: list[Any], field: str) -> Iterator[tuple[str, Any, Any]]:
    """Compares elements with those of the same type. A different order of types is a difference of its own."""
    types, other_types = tuple(map(_type, one)), tuple(map(_type, other))
    if types != other_types:
        yield f"{field}[].type" if any(types) else field, types, other_types
    if sorted(types) == sorted(other_types):
        for pair in zip(sorted(one, key=_type), sorted(other, key=_type), strict=True):
            yield from _differing(*pair, f"{field}[]")


def _type(value: Any) -> str:
    return str(value.get("type", "")) if isinstance(value, dict) else ""


def _equal(one: Any, other: Any) -> bool:
    """Compares two values.

    Floating-point numbers may differ slightly, because logprobs are computed again in another order of additions.
    """
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) < 1e-3
    return type(one) is type(other) and bool(one == other)


def _as_answer(event: Json) -> Json:
    """Returns the contents of an event at the places that they have in a complete answer."""
    match event.get("type"):
        case "message_start":
            return dict(event["message"])
        case "content_block_start":
            return {"content": [event["content_block"]]}
        case "content_block_delta":
            names = {"partial_json": "input"}
            return {"content": [{names.get(name, name): value for name, value in event["delta"].items() if name != "type"}]}
        case "message_delta":
            return {**event, **event["delta"], "type": "message"}
        case str() as name if name.startswith("response."):  # the last event has the complete answer
            return dict(event["response"]) if name in ("response.completed", "response.incomplete") else {}
    return event


def _fields(value: Any, field: str) -> Iterator[tuple[str, Any]]:
    """Yields every field with its value, both objects and lists and the fields in them."""
    if field:
        yield field, value
    inner: Json = value if isinstance(value, dict) else {}
    for name, each in inner.items():
        yield from _fields(each, f"{field}.{name}".lstrip("."))
    for each in value if isinstance(value, list) else ():
        yield from _fields(each, f"{field}[]")
