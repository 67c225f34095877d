"""Most events of a stream differ from the one before in one text only: that is seen without parsing them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any, NamedTuple

from pytest_agentbench.records import Json
from pytest_agentbench.tap.dialects.pieces import TextPieces
from pytest_agentbench.tap.stream import NetworkRead


class RepeatedEvents(NamedTuple):
    """What the events of a stream have in common, each of them the whole of a read: `data: ...` and a blank line."""

    start: bytes  # up to the text
    end: bytes  # behind it
    kind: str  # of their chunks
    pieces: TextPieces  # to which the texts belong

    def said_in(self, reads: Sequence[NetworkRead]) -> list[bytes]:
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
