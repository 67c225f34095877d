"""Server-sent events by the WHATWG rules, read after the fact from stamped reads of raw bytes.

An event carries the stamp of the read in which its last byte came. Cuts may be anywhere, also inside a character.
https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

BOM = b"\xef\xbb\xbf"

Read = tuple[int, bytes]  # monotonic nanoseconds, bytes


class Event(NamedTuple):
    """One dispatched event."""

    at_ns: int  # monotonic nanoseconds
    own_stamp: bool  # False when a later event ended in the same read
    name: str  # of the `event:` field, "message" without one
    data: bytes  # the data lines, joined by newlines


def events(reads: Sequence[Read]) -> list[Event]:
    """The events of a stream. What stands behind the last blank line is no event: the stream was cut there."""
    ends = list(accumulate(len(data) for _, data in reads))
    found = list(_dispatched(b"".join(data for _, data in reads)))
    read_of = [bisect_left(ends, end) for end, _, _ in found]
    own_stamps = [read != later for read, later in pairwise([*read_of, -1])]
    return [Event(reads[read][0], own, name, data) for read, own, (_, name, data) in zip(read_of, own_stamps, found, strict=True)]


def _dispatched(text: bytes) -> Iterator[tuple[int, str, bytes]]:
    """(offset behind its last byte, name, data) of each event that has data."""
    name = b""
    data: list[bytes] = []
    end = len(BOM) if text.startswith(BOM) else 0
    for line in text[end:].splitlines(keepends=True):  # of bytes: at LF, CR and CRLF, and nowhere else
        end += len(line)
        field, _, value = line.rstrip(b"\r\n").partition(b":")
        if field == b"data":
            data.append(value.removeprefix(b" "))
        elif field == b"event":
            name = value.removeprefix(b" ")
        elif line in (b"\n", b"\r\n", b"\r"):
            if data:
                yield end, name.decode(errors="replace") or "message", b"\n".join(data)
            name, data = b"", []
