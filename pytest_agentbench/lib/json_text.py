"""JSON as agents and servers really write it, halves of characters included.

orjson reads and writes it where it can, and the standard library what only that accepts.
"""

from __future__ import annotations

import json
from typing import Any

import orjson


def whole_characters(text: str) -> str:
    """The text with U+FFFD in place of each half of a character (a lone surrogate); two halves that meet are the character."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def loads(text: bytes) -> Any:
    """The value of `text`, also with NaN or half an emoji in it (texts cut by UTF-16 units); raises ValueError."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        pass
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def dumps(value: Any) -> bytes:
    """The inverse; raises ValueError for what is nested too deeply."""
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:
        return _dumps(value)


def dumps_any(value: Any) -> bytes:
    """Returns JSON of any value: NaN and infinity stay, and what JSON cannot express, such as a date, becomes a text.

    Raises ValueError for what is nested too deeply.
    """
    return _dumps(value, default=str, separators=(",", ":"))


def _dumps(value: Any, **options: Any) -> bytes:
    try:
        return json.dumps(value, **options).encode()
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def readable(value: Any) -> Any:
    """The same with U+FFFD in place of halves of characters, which no UTF-8 holds and no server takes; halves that meet are whole."""
    try:
        orjson.dumps(value)
    except orjson.JSONEncodeError:
        return json.loads(whole_characters(json.dumps(value, ensure_ascii=False)))
    return value


def json_object(text: bytes) -> dict[str, Any] | None:
    """The object that `text` is; None for any other text."""
    try:
        value = loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
