"""Server-sent events by the WHATWG rules, read as they come from stamped reads of raw bytes.

An event carries the stamp of the read in which its last byte came. Cuts may be anywhere, also inside a character or a line end.
https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

BOM = b"\xef\xbb\xbf"


class NetworkRead(NamedTuple):
    """What came from the backend at one time."""

    at_ns: int  # monotonic nanoseconds
    lag_ns: int | None  # how long it lay in the kernel before; None for stamps taken in user space
    data: bytes


class Event(NamedTuple):
    """One dispatched event."""

    at_ns: int  # monotonic nanoseconds
    lag_ns: int | None  # of the read
    own_stamp: bool  # False when a later event ended in the same read
    name: str  # of the `event:` field, "message" without one
    data: bytes  # the data lines, joined by newlines


class EventReader:
    """Reads one stream. What stands behind the last blank line is no event: it stays here until the rest comes."""

    def __init__(self) -> None:
        self._opened = False  # the byte order mark has come, or something else
        self._after_cr = False  # an LF now belongs to the line end before it
        self._line: list[bytes] = []  # pieces of the line that has no end yet
        self._name = b""
        self._data: list[bytes] = []  # data lines of the event that has no end yet

    @property
    def between_events(self) -> bool:
        """Whether all that came was whole events, so that the next read begins with a new one."""
        return self._opened and not (self._line or self._data or self._name or self._after_cr)

    def feed(self, reads: Sequence[NetworkRead]) -> list[Event]:
        """The events that end in these reads."""
        events: list[Event] = []
        for at_ns, lag_ns, data in reads:
            ended = self._dispatched(self._lines(data))
            events.extend(Event(at_ns, lag_ns, place == len(ended), *event) for place, event in enumerate(ended, 1))
        return events

    def _lines(self, data: bytes) -> list[bytes]:
        """The lines that end in a read, without their ends. A CR ends a line at once, whether an LF follows or not."""
        if not self._opened:
            data = self._behind_bom(data)
        if self._after_cr and data:
            data = data.removeprefix(b"\n")
            self._after_cr = False
        if not data:
            return []
        lines = data.splitlines()  # of bytes: at LF, CR and CRLF, and nowhere else
        self._after_cr = data.endswith(b"\r")
        is_cut = not data.endswith((b"\r", b"\n"))
        if self._line and not (is_cut and len(lines) == 1):
            lines[0] = b"".join([*self._line, lines[0]])
            self._line = []
        if is_cut:
            self._line.append(lines.pop())
        return lines

    def _dispatched(self, lines: list[bytes]) -> list[tuple[str, bytes]]:
        """(name, data) of each event that ends with these lines."""
        events = []
        for line in lines:
            if not line:
                if self._data:
                    events.append((self._name.decode(errors="replace") or "message", b"\n".join(self._data)))
                self._name, self._data = b"", []
                continue
            field, _, value = line.partition(b":")
            if field == b"data":
                self._data.append(value.removeprefix(b" "))
            elif field == b"event":
                self._name = value.removeprefix(b" ")
        return events

    def _behind_bom(self, data: bytes) -> bytes:
        """What there is to read, from where a byte order mark at the start of the stream ends."""
        start = b"".join([*self._line, data])
        if BOM.startswith(start):  # the rest of it may be still to come
            self._line = [start]
            return b""
        self._opened, self._line = True, []
        return start.removeprefix(BOM)
