"""Most events of a stream differ from the one before in one text only: that is seen without parsing them."""

from __future__ import annotations

from typing import Any, NamedTuple

from pytest_agentbench.records import Json
from pytest_agentbench.tap.dialects.growing import Text


class Repeated(NamedTuple):
    """What the events of a stream have in common."""

    start: bytes  # up to the text
    end: bytes  # behind it
    kind: str  # of their chunks
    pieces: Text  # to which the texts belong

    def text_of(self, data: bytes) -> str:
        """The text of an event that is like this; empty for any other, and for a text that has to be parsed."""
        if not (data.startswith(self.start) and data.endswith(self.end)):
            return ""
        said = data[len(self.start) : -len(self.end)]
        if b'"' in said or b"\\" in said:
            return ""
        try:
            text = said.decode()
        except UnicodeDecodeError:
            return ""
        return text if text.isprintable() else ""


def repeated(data: bytes, head: Json, delta: Json, name: str, kind: str, pieces: Any) -> Repeated | None:
    """What later events have to be like to say no more than this one, whose `delta` says something under `name`.

    `head` is what else there is in it. None where another such event would say more than its text, or the text is not found.
    """
    if not isinstance(pieces, Text) or any(value for each, value in delta.items() if each not in (name, "role")) or not _is_plain(head):
        return None
    key = b'"%b"' % name.encode()
    if data.count(key) != 1 or b"\\" in data:  # so that the next two quotes are those around the text
        return None
    start = data.index(b'"', data.index(key) + len(key)) + 1
    return Repeated(data[:start], data[data.index(b'"', start) :], kind, pieces)


def _is_plain(value: Any) -> bool:
    """Whether it is the same when it is said again: lists go on, and all else is replaced."""
    return all(map(_is_plain, value.values())) if isinstance(value, dict) else not isinstance(value, list)
