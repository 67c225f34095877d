"""Parses texts of models: texts between tags, and objects that are almost JSON. Also compiles the JSON Schemas that check such objects.

An object is almost JSON if it differs from JSON only in these ways:

- code fences or text around the object
- single quotes
- Python's True, False and None
- a comma before a closing bracket
- missing closing brackets at the end

Such a text is rewritten token by token, then parsed as JSON. A text that ends within a string, or after a comma, colon or opening
bracket, is not repaired, because its continuation is unknown.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import fastjsonschema
import orjson

from pytest_agentbench.records import Json


def tagged(text: str, tag: str) -> list[str]:
    """Returns the texts between `<tag>` and the next `</tag>`. Ignores case, and tags that are not closed."""
    texts: list[str] = []
    start: int | None = None
    for mark in re.finditer(rf"<(/?){re.escape(tag)}>", text, re.IGNORECASE):
        if not mark[1]:
            start = mark.end() if start is None else start
        elif start is not None:
            texts.append(text[start : mark.start()])
            start = None
    return texts


#: A string, a punctuation mark, white space, or a word. A single quotation mark opens a string that never ends.
TOKEN = re.compile(r'"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'|[{}\[\],:"\']|\s+|[^{}\[\],:"\'\s]+')
BRACKET = re.compile(r"[{}\[\]]")
#: Parts of a single-quoted string that are written differently in a JSON string.
ESCAPE = re.compile(r'\\.|"')
CLOSING = {"{": "}", "[": "]"}
PYTHON = {"True": "true", "False": "false", "None": "null"}


class Object(NamedTuple):
    """The result of scanning a text for one JSON object: its tokens, already corrected where they differ from JSON."""

    tokens: list[str]
    missing: list[str]  # missing closing brackets
    end: int  # position after the object in the text


def repaired(text: str) -> Json | None:
    """Parses a text that contains one object that is almost JSON. Returns None for any other text."""
    text = text.strip().removeprefix("```").removesuffix("```")
    start = text.find("{")
    read = _read(text, start) if start >= 0 else None
    if read is None or (read.missing and read.tokens[-1] in CLOSING):
        return None
    if BRACKET.search(text, 0, start) or BRACKET.search(text, read.end):
        return None  # The text contains several objects or a list, so it is ambiguous.
    try:
        # The blanks keep two words from becoming one.
        value: Json = orjson.loads(" ".join([*read.tokens, *read.missing]))
    except orjson.JSONDecodeError:
        return None
    return value


def object_text(text: str) -> str:
    """Converts the arguments of a tool call, as the model wrote them, to a text that servers accept.

    Returns a JSON object unchanged, an object that is almost JSON repaired, and `{}` for any other text.
    """
    try:
        if isinstance(orjson.loads(text), dict):
            return text
    except orjson.JSONDecodeError:
        pass
    return orjson.dumps(repaired(text) or {}).decode()


def object_end(text: str, start: int) -> int | None:
    """Returns the position after the object that begins with the bracket at `start`, or None if the object does not end."""
    read = _read(text, start)
    return None if read is None or read.missing else read.end


def _read(text: str, start: int) -> Object | None:
    """Reads the object that begins with the bracket at `start`. Returns None if brackets or quotation marks do not match."""
    tokens: list[str] = []
    open_brackets: list[str] = []
    for match in TOKEN.finditer(text, start):
        token = match[0]
        if token in CLOSING:
            open_brackets.append(token)
        elif token in CLOSING.values():
            if CLOSING[open_brackets.pop()] != token:
                return None
            if tokens[-1] == "," and tokens[-2] not in CLOSING:
                tokens.pop()
        elif token in {'"', "'"}:
            return None
        if not token.isspace():
            tokens.append(_as_json(token))
        if not open_brackets:
            return Object(tokens, [], match.end())
    return Object(tokens, [CLOSING[each] for each in reversed(open_brackets)], len(text))


def _as_json(token: str) -> str:
    if token[0] == "'":
        inside = ESCAPE.sub(lambda match: {"\\'": "'", '"': '\\"'}.get(match[0], match[0]), token[1:-1])
        return f'"{inside}"'
    return PYTHON.get(token, token)


@functools.lru_cache(maxsize=1024)
def validator(schema: str | bytes) -> Callable[[Json], Any]:
    """Returns a function that raises fastjsonschema.JsonSchemaValueException if an object does not match the schema. Adds no defaults."""
    compiled: Callable[[Json], Any] = fastjsonschema.compile(orjson.loads(schema), use_default=False)
    return compiled
