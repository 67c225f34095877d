"""Reads JSON files and lines with limits. A damaged or hostile file leads to a one-line error, not to a traceback or exhausted memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pytest_agentbench.errors import ConfigError

Pairs = Callable[[list[tuple[str, Any]]], Any]

MOST_DEPTH = 200  # levels of nesting; limited because the parser and other code are recursive
MOST_SIZE = 1 << 30  # bytes of a file that is read at once


def read_json_file(file: Path, most: int = MOST_SIZE) -> Any:
    """Returns the value of a JSON file of at most `most` bytes.

    Raises ConfigError with the name of the file if it cannot be read, is larger, is nested too deeply or is not JSON.
    """
    text = bounded_text(file, most)
    try:
        return bounded_json(text)
    except ValueError as error:
        raise ConfigError(f"{file}: not valid JSON: {error}") from error


def bounded_text(file: Path, most: int = MOST_SIZE) -> str:
    """Returns the text of a file. Raises ConfigError with its name if it cannot be read or has more than `most` bytes."""
    try:
        size = file.stat().st_size
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror or error}") from error
    if size > most:
        raise ConfigError(f"{file}: has {size:,} bytes, but at most {most:,} are allowed; make it smaller")
    return read_text(file)


def read_text(file: Path) -> str:
    """Returns the text of a UTF-8 file. Raises ConfigError if it is missing, unreadable or not UTF-8."""
    try:
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: not UTF-8: byte {error.start} is {error.object[error.start]:#04x}; save it as UTF-8") from error
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror or error}") from error


def json_in(file: Path, text: str, line: int | None = None, pairs: Pairs | None = None) -> Any:
    """Parses the text of a file, or of one of its lines. Raises ConfigError with the file, and the line and column if known."""
    try:
        return bounded_json(text, pairs)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{file}:{line or error.lineno}: not valid JSON: {error.msg} (column {error.colno})") from error
    except ValueError as error:
        raise ConfigError(f"{file}:{line}: not valid JSON: {error}" if line else f"{file}: not valid JSON: {error}") from error


def bounded_json(text: str | bytes, pairs: Pairs | None = None) -> Any:
    """Parses a JSON text. Raises ValueError if it is not JSON, or has more than MOST_DEPTH levels.

    `pairs` is used as `object_pairs_hook` of `json.loads`: it converts the key-value pairs of an object to its value.
    """
    try:
        value = json.loads(text, object_pairs_hook=pairs)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    if _is_deeper(value, MOST_DEPTH):
        raise ValueError(_TOO_DEEP)
    return value


_TOO_DEEP = f"it is nested more than {MOST_DEPTH} levels deep"


def _is_deeper(value: Any, most: int) -> bool:
    """Returns whether objects and arrays are nested more than `most` levels deep. Works level by level, without recursion."""
    level = [value]
    for _ in range(most):
        level = [part for each in level if isinstance(each, dict | list) for part in (each.values() if isinstance(each, dict) else each)]
        level = [each for each in level if isinstance(each, dict | list)]
        if not level:
            return False
    return True
