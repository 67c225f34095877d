"""The bytes of an answer as they come: content codings (RFC 9110, 8.4.1), server-sent events, and streams whose usage is left out.

Events are read by the WHATWG rules from stamped reads of raw bytes. An event carries the stamp of the read in which its last byte came.
Cuts may be anywhere, also inside a character or a line end.
https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from pytest_agentbench.lib import json_text


class Decoder(Protocol):
    """Decodes one body."""

    @property
    def has_more(self) -> bool:
        """Whether there is more in what it got."""
        ...

    def decode(self, data: bytes, most: int) -> bytes:
        """What these bytes add, and those before; raises ValueError for what is not of the coding.

        Of what it has to unpack `most` bytes; the rest is had with no further data.
        """
        ...

    def end(self) -> None:
        """Raises ValueError for a body that was cut."""
        ...


class Identity:
    """A body without a coding."""

    has_more = False

    def decode(self, data: bytes, most: int) -> bytes:  # noqa: ARG002 - nothing is unpacked
        return data

    def end(self) -> None:
        pass


class Inflate:
    """A gzip or deflate body. One without a single byte is empty, not cut."""

    def __init__(self, coding: str) -> None:
        self._coding = coding
        self._waiting = b""  # not unpacked yet
        self._inflater: zlib._Decompress | None = None
        self.has_more = False

    def decode(self, data: bytes, most: int) -> bytes:
        pieces, room = [], most
        self._waiting += data
        while (self._waiting or self.has_more) and room:
            if self._inflater is None and self._coding == "deflate" and len(self._waiting) < 2:
                break  # the second byte tells its form
            inflater = self._inflater = self._inflater or zlib.decompressobj(_window_bits(self._coding, self._waiting))
            try:
                pieces.append(inflater.decompress(self._waiting, room))
            except zlib.error as error:
                raise ValueError(f"the body is not {self._coding}: {error}") from error
            room -= len(pieces[-1])
            self._waiting = inflater.unconsumed_tail or inflater.unused_data
            self.has_more = not room and not inflater.eof
            if inflater.eof and self._waiting and self._coding == "deflate":
                raise ValueError("something stands behind the deflate body")
            if inflater.eof and self._waiting:  # a gzip body may have several members
                self._inflater, self.has_more = None, not room
        return b"".join(pieces)

    def end(self) -> None:
        if self._waiting or (self._inflater is not None and not self._inflater.eof):
            raise ValueError(f"the {self._coding} body is cut")


def decoder(content_encoding: bytes) -> Decoder | None:
    """A decoder for the value of a Content-Encoding header, empty without one; None for codings that the tap cannot read."""
    codings = [coding for part in content_encoding.lower().split(b",") if (coding := part.strip()) not in (b"", b"identity")]
    if not codings:
        return Identity()
    if codings in ([b"gzip"], [b"x-gzip"]):
        return Inflate("gzip")
    return Inflate("deflate") if codings == [b"deflate"] else None


def _window_bits(coding: str, start: bytes) -> int:
    """What `zlib.decompressobj` wants to know. Deflate should have a zlib head, but some servers send it bare (RFC 1950, 2.2)."""
    if coding == "gzip":
        return 16 + zlib.MAX_WBITS
    has_head = start[0] & 0x0F == 8 and int.from_bytes(start[:2]) % 31 == 0
    return zlib.MAX_WBITS if has_head else -zlib.MAX_WBITS


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


#: Every event that is left out holds this.
MARK = b'"usage"'


class WithoutUsage:
    """Passes bytes on as they come. Only the beginning of an event whose end is still to come waits for it."""

    def __init__(self) -> None:
        self._end = b""  # of an event, as this stream writes it; known when its first line is there
        self._begun = b""

    def feed(self, data: bytes) -> bytes:
        """What may be passed on now."""
        if self._end and not self._begun and data.endswith(self._end) and MARK not in data:
            return data
        data, self._begun = self._begun + data, b""
        self._end = self._end or _end_of_events(data)
        if self._end == b"\r":  # a form that is allowed, and that nobody uses
            return data
        whole, end, self._begun = data.rpartition(self._end or b"\n\n")
        return b"".join(event + end for event in (whole.split(end) if end else ()) if not _only_usage(event))

    def rest(self) -> bytes:
        """What is left at the end of a stream."""
        rest, self._begun = self._begun, b""
        return rest


def _end_of_events(data: bytes) -> bytes:
    if b"\r\n" in data:
        return b"\r\n\r\n"
    if b"\n" in data:
        return b"\n\n"
    return b"\r" if b"\r" in data[:-1] else b""


def _only_usage(event: bytes) -> bool:
    if MARK not in event:
        return False
    field, _, text = event.strip().partition(b":")
    data = json_text.json_object(text) if field == b"data" else None
    return data is not None and data.get("choices") == [] and isinstance(data.get("usage"), dict)
