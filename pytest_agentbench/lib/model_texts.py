"""Reads what models write: texts between tags, and objects that are almost JSON.

Almost JSON is what models write when they mean JSON, and nothing beyond what is listed here: code fences and text around the object,
single quotes, Python's True, False and None, a comma before a closing bracket, and closing brackets that are missing at the end. The
text is only rewritten, token by token; whether the outcome is JSON is for a JSON parser to say. A text that ends within a string, or
after a comma, colon or opening bracket, stays unread: what was to follow is unknown.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import orjson

from pytest_agentbench.records import Json


def tagged(text: str, tag: str) -> list[str]:
    """Returns each text from `<tag>` to the next `</tag>`, without them. Ignores case, and tags that are not closed."""
    texts: list[str] = []
    start: int | None = None
    for mark in re.finditer(rf"<(/?){re.escape(tag)}>", text, re.IGNORECASE):
        if not mark[1]:
            start = mark.end() if start is None else start
        elif start is not None:
            texts.append(text[start : mark.start()])
            start = None
    return texts


#: A string, a sign, white space, or a word. A quotation mark of its own opens a string that never ends.
TOKEN = re.compile(r'"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'|[{}\[\],:"\']|\s+|[^{}\[\],:"\'\s]+')
BRACKET = re.compile(r"[{}\[\]]")
#: What differs between the inside of a single-quoted string and that of a JSON string.
ESCAPE = re.compile(r'\\.|"')
CLOSING = {"{": "}", "[": "]"}
PYTHON = {"True": "true", "False": "false", "None": "null"}


class Object(NamedTuple):
    """An object of a text, token by token as JSON writes it."""

    tokens: list[str]
    missing: list[str]  # closing brackets
    end: int  # where it ends in the text


def repaired(text: str) -> Json | None:
    """The object that a text means; None for what is no object, or not almost JSON."""
    text = text.strip().removeprefix("```").removesuffix("```")
    start = text.find("{")
    read = _read(text, start) if start >= 0 else None
    if read is None or (read.missing and read.tokens[-1] in CLOSING):
        return None
    if BRACKET.search(text, 0, start) or BRACKET.search(text, read.end):
        return None  # several objects, or a list: nobody knows which one is meant
    try:
        # With blanks between them, so that two words do not become one.
        value: Json = orjson.loads(" ".join([*read.tokens, *read.missing]))
    except orjson.JSONDecodeError:
        return None
    return value


def object_text(text: str) -> str:
    """Arguments as a server takes them back: as they are, where they are a JSON object; as what they almost are; or `{}`."""
    try:
        if isinstance(orjson.loads(text), dict):
            return text
    except orjson.JSONDecodeError:
        pass
    return orjson.dumps(repaired(text) or {}).decode()


def object_end(text: str, start: int) -> int | None:
    """Where the object ends that an opening bracket at `start` begins; None if it does not."""
    read = _read(text, start)
    return None if read is None or read.missing else read.end


def _read(text: str, start: int) -> Object | None:
    """The object that an opening bracket at `start` begins; None where brackets or quotation marks are not in pairs."""
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
