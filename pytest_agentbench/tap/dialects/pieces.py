"""Values that come in pieces, and events that differ from the one before in one text only, which are not parsed.

Texts are kept as pieces until the end, so that a long answer costs no more than its length. Most events of a stream differ from the one
before in one text only.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any, NamedTuple

from pytest_agentbench.records import Json
from pytest_agentbench.tap.stream import NetworkRead


class TextPieces(list[str]):
    """The pieces of one text."""


class Fields(dict[str, Any]):
    """An object whose values come in pieces."""


def grown(before: Any, more: Any) -> Any:
    """What a value and its next piece are together: texts and lists continue, objects do so field by field; null adds nothing.

    Changes `before`. `settled` makes of the result what JSON has.
    """
    if isinstance(more, str):
        text = before if isinstance(before, TextPieces) else TextPieces()
        text.append(more)
        return text
    if isinstance(more, dict):
        fields = before if isinstance(before, Fields) else Fields()
        for name, value in more.items():
            fields[name] = grown(fields.get(name), value)
        return fields
    if isinstance(more, list) and isinstance(before, list) and not isinstance(before, TextPieces):
        before.extend(more)
        return before
    return before if more is None else more


def settled(value: Any) -> Any:
    """The whole value."""
    if isinstance(value, TextPieces):
        return "".join(value)
    if isinstance(value, Fields):
        return {name: settled(each) for name, each in value.items()}
    return value


def renewed(before: Any, more: Any) -> Any:
    """As `grown`, for fields that are said whole each time: a text replaces the one before it. Changes `before`."""
    if isinstance(before, dict) and isinstance(more, dict):
        for name, value in more.items():
            before[name] = renewed(before.get(name), value)
        return before
    if isinstance(before, list) and isinstance(more, list):
        before.extend(more)
        return before
    return before if more is None else more


class RepeatedEvents(NamedTuple):
    """What the events of a stream have in common, each of them the whole of a read: `data: ...` and a blank line."""

    start: bytes  # up to the text
    end: bytes  # behind it
    kind: str  # of their chunks
    pieces: TextPieces  # to which the texts belong

    def texts_in(self, reads: Sequence[NetworkRead]) -> list[bytes]:
        """The texts of the first reads, up to one that is unlike this or whose text has to be parsed."""
        start, end = self.start, self.end
        first, last = len(start), -len(end)
        parts = []
        for read in reads:
            data = read.data
            if not (data.startswith(start) and data.endswith(end)):
                break
            parts.append(data[first:last])
        together = b"".join(parts)
        if all(parts) and together.isascii() and _needs_no_parsing(together):
            return parts
        return [*takewhile(_needs_no_parsing, parts)]


def repeated(data: bytes, head: Json, delta: Json, name: str, kind: str, pieces: Any) -> RepeatedEvents | None:
    """What later events have to be like to say no more than this one, whose `delta` says something under `name`.

    `head` is what else there is in it. None where another such event would say more than its text, or the text is not found.
    """
    if (
        not isinstance(pieces, TextPieces)
        or any(value for each, value in delta.items() if each not in (name, "role"))
        or not _is_plain(head)
    ):
        return None
    key = b'"%b"' % name.encode()
    if data.count(key) != 1 or b"\\" in data:  # so that the next two quotes are those around the text
        return None
    start = data.index(b'"', data.index(key) + len(key)) + 1
    return RepeatedEvents(b"data: " + data[:start], data[data.index(b'"', start) :] + b"\n\n", kind, pieces)


def _needs_no_parsing(part: bytes) -> bool:
    """Whether it is a text that says in JSON what it is: nothing in it is escaped, or would have to be."""
    if not part or b'"' in part or b"\\" in part:
        return False
    try:
        return part.decode().isprintable()
    except UnicodeDecodeError:
        return False


def _is_plain(value: Any) -> bool:
    """Whether it is the same when it is said again: lists go on, and all else is replaced."""
    return all(map(_is_plain, value.values())) if isinstance(value, dict) else not isinstance(value, list)
