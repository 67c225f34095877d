"""JSON texts: those of agents and servers, files with limits, and lines with checksums.

Texts of agents and servers are read and written as they really are, including lone surrogates (halves of UTF-16 characters). orjson is
tried first. The standard library handles the rest.

A damaged or hostile file leads to a one-line error, not to a traceback or exhausted memory.

rollouts.jsonl, attempts.jsonl and messages.jsonl consist of lines with checksums: a changed byte is detected.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from zlib import crc32

import orjson

from pytest_agentbench.errors import ConfigError


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


BEGIN, SEALED = b'{"crc":"', b'",'  # text around the checksum (eight hexadecimal digits) at the start of each line
REST = len(BEGIN) + 8 + len(SEALED)  # offset at which the record continues after the checksum


def sealed(record: bytes) -> bytes:
    """Returns a record with the CRC-32 of its text as its first field, so that every changed byte is detected."""
    return b"%b%08x%b%b" % (BEGIN, crc32(record[1:]), SEALED, record[1:])


def opened(line: bytes) -> bytes:
    """Returns the record of a line (without newline) after checking and removing the checksum. Raises ValueError if it does not match."""
    if line[:REST] != b"%b%08x%b" % (BEGIN, crc32(line[REST:]), SEALED):
        raise ValueError("its checksum does not match")
    return b"{" + line[REST:]
