"""Files of other tools: JSON and times, with one sentence that names the file where they are not what they should be."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, TypeVar

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib.json_file import read_json_file
from pytest_agentbench.records import Json

T = TypeVar("T")

WORDS = {list: "an array", dict: "an object", str: "a text", bool: "true or false", int: "a whole number", type(None): "null"}

_SPACE = re.compile(r"\s*")
_DECODER = json.JSONDecoder()


def read_object(file: Path, *needed: str) -> Json:
    """The JSON object of a file, with all the keys that are needed; raises ConfigError."""
    data = read_json_file(file)
    if not isinstance(data, dict):
        raise ConfigError(f"{file}: holds {_kind(data)}, should be an object")
    if missing := [key for key in needed if key not in data]:
        raise ConfigError(f"{file}: the key {missing[0]!r} is missing")
    return data


def json_items(file: Path, size: int = 1 << 20) -> Iterator[Any]:
    """The elements of a JSON array, one at a time: a file of gigabytes takes the memory of its largest element, a few times.

    Raises ConfigError where the file holds no array, or is cut off. `size` is the characters to read at a time.
    """
    try:
        with file.open(encoding="utf-8-sig") as stream:
            text = stream.read(size)
            at = _SPACE.match(text).end()  # type: ignore[union-attr]  # it matches anything
            if text[at : at + 1] != "[":
                raise ConfigError(f"{file}: should hold a JSON array")
            at += 1
            while (element := _element(text, at)) != _END:
                if element is not None:
                    value, at = element
                    yield value
                elif more := stream.read(max(size, len(text) - at)):  # as much again, so that no text is looked at too often
                    text, at = text[at:] + more, 0
                else:
                    raise ConfigError(f"{file}: its array is cut off, or is no JSON, at {text[at : at + 40]!r}")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: {error}") from error


_END = (None, -1)


def _element(text: str, at: int) -> tuple[Any, int] | None:
    """(the element that begins at a place, where the next one begins); _END behind the last; None when more text is needed."""
    at = _SPACE.match(text, at).end()  # type: ignore[union-attr]
    if text[at : at + 1] == "]":
        return _END
    try:
        value, end = _DECODER.raw_decode(text, at)
    except ValueError:
        return None
    end = _SPACE.match(text, end).end()  # type: ignore[union-attr]
    match text[end : end + 1]:
        case ",":
            return value, end + 1
        case "]":
            return value, end
        case _:
            return None


def epoch_ns(seconds: str) -> int:
    """Nanoseconds of seconds since 1970, as text so that no digit is lost; raises ValueError."""
    try:
        value = Decimal(seconds)
    except InvalidOperation as error:
        raise ValueError(f"{seconds!r} is no time in seconds") from error
    if not value.is_finite():
        raise ValueError(f"{seconds!r} is no time in seconds")
    return round(value * 10**9)


def iso_ns(text: Any, file: Path) -> int | None:
    """Nanoseconds since 1970 of an ISO 8601 time, None of nothing; raises ConfigError."""
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{file}: {text!r} is no ISO 8601 time") from error
    return round(Decimal(str(moment.timestamp())) * 10**9)


def dig(data: Any, *path: str) -> Any:
    """What lies at a path through nested mappings; None where it leads nowhere."""
    for key in path:
        data = data.get(key) if isinstance(data, dict) else None
    return data


def member(data: Json, name: str, kind: type[T], file: Path) -> T | None:
    """What an object of a file has under a name, None of nothing; raises ConfigError where it is of another kind."""
    value = data.get(name)
    if value is None or (isinstance(value, kind) and (kind is bool or not isinstance(value, bool))):
        return value
    raise ConfigError(f"{file}: {name} is {_kind(value)}, should be {WORDS[kind]}")


def members(data: Json, name: str, file: Path) -> list[Json]:
    """The objects in an array that an object of a file has under a name, none of nothing; raises ConfigError where it is no such array."""
    values = member(data, name, list, file) or []
    if wrong := [value for value in values if not isinstance(value, dict)]:
        raise ConfigError(f"{file}: {name} has {_kind(wrong[0])} in it, should be an array of objects")
    return values


def _kind(value: Any) -> str:
    return WORDS.get(type(value), "a number")
