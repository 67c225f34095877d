"""Reads and writes JSON as agents and servers really write it, including lone surrogates (halves of UTF-16 characters).

orjson is tried first. The standard library handles the rest.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import orjson


def whole_characters(text: str) -> str:
    """Replaces each lone surrogate in a text by U+FFFD. Two surrogates that form a pair become the character."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def loads(text: bytes) -> Any:
    """Parses JSON, which may contain NaN and lone surrogates (from texts truncated in UTF-16). Raises ValueError.

    Integers beyond 64 bits become floats.
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        pass
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("the JSON is nested too deeply") from error


def dumps(value: Any) -> bytes:
    """Serialises a value that `loads` returned. Raises ValueError if it is nested too deeply."""
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:
        return _dumps(value)


def dumps_any(value: Any) -> bytes:
    """Serialises any value: NaN and infinity stay, and values that JSON cannot express, such as dates, become strings.

    Raises ValueError if the value is nested too deeply.
    """
    return _dumps(value, default=str, separators=(",", ":"))


def _dumps(value: Any, **options: Any) -> bytes:
    try:
        return json.dumps(value, **options).encode()
    except RecursionError as error:
        raise ValueError("the value is nested too deeply") from error


def readable(value: Any) -> Any:
    """Replaces lone surrogates in all texts of a JSON value, because they have no UTF-8 form and servers refuse them."""
    try:
        orjson.dumps(value)
    except orjson.JSONEncodeError:
        return json.loads(whole_characters(json.dumps(value, ensure_ascii=False)))
    return value


def json_object(text: bytes) -> dict[str, Any] | None:
    """Parses a JSON object. Returns None if the text is not one."""
    try:
        value = loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def texts_in(value: Any) -> Iterator[str]:
    """Yields all texts in a JSON value in their order, including the keys of objects."""
    if isinstance(value, Mapping):
        for name, each in value.items():
            yield from texts_in(name)
            yield from texts_in(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from texts_in(each)
    elif isinstance(value, str):
        yield value
