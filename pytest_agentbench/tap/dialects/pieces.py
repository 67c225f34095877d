"""JSON values that arrive in pieces, and a fast path for repeated events.

Texts are stored as lists of pieces until the end, so that the cost of a long answer grows only linearly. Most events of a stream differ
from the one before only in one text. Such events are not parsed.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any, NamedTuple

from pytest_agentbench.records import Json
from pytest_agentbench.tap.stream import NetworkRead


class TextPieces(list[str]):
    """A text that is still arriving: the list of its pieces."""


class Fields(dict[str, Any]):
    """A JSON object that is still arriving. Its values are unfinished, too: texts are `TextPieces`, and objects are `Fields`."""


def grown(before: Any, more: Any) -> Any:
    """Adds the next piece of a JSON value (`more`) to what has arrived of it (`before`, None at first), and returns the result.

    Texts and lists are extended, objects field by field, and null adds nothing. May change `before`. The result contains `TextPieces` and
    `Fields`; `settled` converts it to plain JSON.
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
    """Converts what has arrived of a value, a result of `grown`, to plain JSON: pieces of texts are joined."""
    if isinstance(value, TextPieces):
        return "".join(value)
    if isinstance(value, Fields):
        return {name: settled(each) for name, each in value.items()}
    return value


def renewed(before: Any, more: Any) -> Any:
    """Returns a value with its next piece added. Lists and objects are extended; a text replaces the text before. May change `before`."""
    if isinstance(before, dict) and isinstance(more, dict):
        for name, value in more.items():
            before[name] = renewed(before.get(name), value)
        return before
    if isinstance(before, list) and isinstance(more, list):
        before.extend(more)
        return before
    return before if more is None else more


class RepeatedEvents(NamedTuple):
    """A pattern for network reads that are exactly one event (`data: ...` and a blank line) and differ only in one text."""

    start: bytes  # bytes before the text
    end: bytes  # bytes after the text
    kind: str  # kind of the chunks
    pieces: TextPieces  # the text that these texts are added to

    def texts_in(self, reads: Sequence[NetworkRead]) -> list[bytes]:
        """Returns the text in each network read, until one does not match the pattern or has a text that must be parsed."""
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
    """Returns a pattern for events of a stream that equal the one in `data` except for the text of the field `name` in its `delta`.

    `head` contains the other fields of the event. Returns None if merging the event again would change more than that text, or if the
    text cannot be located in `data`.
    """
    if (
        not isinstance(pieces, TextPieces)
        or any(value for each, value in delta.items() if each not in (name, "role"))
        or not _is_plain(head)
    ):
        return None
    key = b'"%b"' % name.encode()
    if data.count(key) != 1 or b"\\" in data:  # Otherwise the next two quotes may not enclose the text.
        return None
    start = data.index(b'"', data.index(key) + len(key)) + 1
    return RepeatedEvents(b"data: " + data[:start], data[data.index(b'"', start) :] + b"\n\n", kind, pieces)


def _needs_no_parsing(part: bytes) -> bool:
    """Returns whether the bytes between quotes equal the text they stand for: they contain no escapes, and nothing to be escaped."""
    if not part or b'"' in part or b"\\" in part:
        return False
    try:
        return part.decode().isprintable()
    except UnicodeDecodeError:
        return False


def _is_plain(value: Any) -> bool:
    """Returns whether a value contains no list. Merging it a second time then changes nothing, because only lists would grow."""
    return all(map(_is_plain, value.values())) if isinstance(value, dict) else not isinstance(value, list)
