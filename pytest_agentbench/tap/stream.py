"""The bytes of an answer as they arrive: content codings (RFC 9110, 8.4.1), server-sent events, and removing the usage from a stream.

Events are parsed by the WHATWG rules from reads of raw bytes, each with a timestamp. An event has the timestamp of the read that
contains its last byte. Reads may end anywhere, even inside a character or a line end.
https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from pytest_agentbench.lib import json_text


class Decoder(Protocol):
    """Decodes the content coding of one body."""

    @property
    def has_more(self) -> bool:
        """Whether data that was passed to `decode` is not decoded yet."""
        ...

    def decode(self, data: bytes, most: int) -> bytes:
        """Returns decoded data, after adding `data` to the input. Raises ValueError for data that is not in this coding.

        A compressed body returns at most `most` bytes; call it again with no data to get the rest.
        """
        ...

    def end(self) -> None:
        """Raises ValueError for a truncated body."""
        ...


class Identity:
    """A body without a coding."""

    has_more = False

    def decode(self, data: bytes, most: int) -> bytes:  # noqa: ARG002 - nothing is decompressed
        return data

    def end(self) -> None:
        pass


class Inflate:
    """A gzip or deflate body. A body of no bytes is empty, not truncated."""

    def __init__(self, coding: str) -> None:
        self._coding = coding
        self._waiting = b""  # compressed data that was not decoded yet
        self._inflater: zlib._Decompress | None = None
        self.has_more = False

    def decode(self, data: bytes, most: int) -> bytes:
        pieces, room = [], most
        self._waiting += data
        while (self._waiting or self.has_more) and room:
            if self._inflater is None and self._coding == "deflate" and len(self._waiting) < 2:
                break  # `_window_bits` needs two bytes.
            inflater = self._inflater = self._inflater or zlib.decompressobj(_window_bits(self._coding, self._waiting))
            try:
                pieces.append(inflater.decompress(self._waiting, room))
            except zlib.error as error:
                raise ValueError(f"the body is not {self._coding}: {error}") from error
            room -= len(pieces[-1])
            self._waiting = inflater.unconsumed_tail or inflater.unused_data
            self.has_more = not room and not inflater.eof
            if inflater.eof and self._waiting and self._coding == "deflate":
                raise ValueError("unexpected data after the deflate body")
            if inflater.eof and self._waiting:  # A gzip body may have several members.
                self._inflater, self.has_more = None, not room
        return b"".join(pieces)

    def end(self) -> None:
        if self._waiting or (self._inflater is not None and not self._inflater.eof):
            raise ValueError(f"the {self._coding} body is truncated")


def decoder(content_encoding: bytes) -> Decoder | None:
    """Returns a decoder for a Content-Encoding header (b"" without one), or None for codings that the tap cannot read."""
    codings = [coding for part in content_encoding.lower().split(b",") if (coding := part.strip()) not in (b"", b"identity")]
    if not codings:
        return Identity()
    if codings in ([b"gzip"], [b"x-gzip"]):
        return Inflate("gzip")
    return Inflate("deflate") if codings == [b"deflate"] else None


def _window_bits(coding: str, start: bytes) -> int:
    """Returns `wbits` for `zlib.decompressobj`. Deflate should have a zlib header (RFC 1950, 2.2), but some servers omit it."""
    if coding == "gzip":
        return 16 + zlib.MAX_WBITS
    has_head = start[0] & 0x0F == 8 and int.from_bytes(start[:2]) % 31 == 0
    return zlib.MAX_WBITS if has_head else -zlib.MAX_WBITS


BOM = b"\xef\xbb\xbf"


class NetworkRead(NamedTuple):
    """The data of one read from the backend."""

    at_ns: int  # time of arrival, monotonic nanoseconds
    lag_ns: int | None  # nanoseconds from the kernel timestamp to the read; None if `at_ns` is the time of the read
    data: bytes


class Event(NamedTuple):
    """One complete server-sent event of an answer, with the time of its last byte."""

    at_ns: int  # time of the read, monotonic nanoseconds
    lag_ns: int | None  # `lag_ns` of the read
    own_stamp: bool  # False if a later event ended in the same read
    name: str  # value of the `event:` field, "message" without one
    data: bytes  # data lines, joined by newlines


class EventReader:
    """Parses one streamed answer into server-sent events. An incomplete event at the end is kept until the rest of it arrives."""

    def __init__(self) -> None:
        self._opened = False  # whether the start of the stream, with or without a byte order mark, has arrived
        self._after_cr = False  # whether the last byte was a CR, so that a following LF belongs to the same line end
        self._line: list[bytes] = []  # pieces of the incomplete line
        self._name = b""
        self._data: list[bytes] = []  # data lines of the incomplete event

    @property
    def between_events(self) -> bool:
        """Whether all events so far are complete, so that the next read begins with a new one."""
        return self._opened and not (self._line or self._data or self._name or self._after_cr)

    def feed(self, reads: Sequence[NetworkRead]) -> list[Event]:
        """Parses the next network reads. Returns the events whose last byte is in them."""
        events: list[Event] = []
        for at_ns, lag_ns, data in reads:
            ended = self._dispatched(self._lines(data))
            events.extend(Event(at_ns, lag_ns, place == len(ended), *event) for place, event in enumerate(ended, 1))
        return events

    def _lines(self, data: bytes) -> list[bytes]:
        """Returns the lines that end in a read, without line ends. A CR ends a line at once, whether an LF follows or not."""
        if not self._opened:
            data = self._without_bom(data)
        if self._after_cr and data:
            data = data.removeprefix(b"\n")
            self._after_cr = False
        if not data:
            return []
        lines = data.splitlines()  # bytes.splitlines, unlike str.splitlines, splits only at LF, CR and CRLF.
        self._after_cr = data.endswith(b"\r")
        is_incomplete = not data.endswith((b"\r", b"\n"))
        if self._line and not (is_incomplete and len(lines) == 1):
            lines[0] = b"".join([*self._line, lines[0]])
            self._line = []
        if is_incomplete:
            self._line.append(lines.pop())
        return lines

    def _dispatched(self, lines: list[bytes]) -> list[tuple[str, bytes]]:
        """Returns (name, data) of each server-sent event that ends in these lines."""
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

    def _without_bom(self, data: bytes) -> bytes:
        """Returns the data at the start of the stream without a byte order mark, or b"" if the mark may still be incomplete."""
        start = b"".join([*self._line, data])
        if BOM.startswith(start):  # The rest of the mark may follow.
            self._line = [start]
            return b""
        self._opened, self._line = True, []
        return start.removeprefix(BOM)


#: Every event that is removed contains this text.
MARK = b'"usage"'


class WithoutUsage:
    """Removes the events with the usage from a stream that an agent gets.

    Complete events are forwarded at once. An incomplete event is held back until its end arrives.
    """

    def __init__(self) -> None:
        self._end = b""  # end of an event in this stream (LF LF or CRLF CRLF); unknown before its first line end
        self._begun = b""  # incomplete event

    def feed(self, data: bytes) -> bytes:
        """Adds data and returns the part that can be forwarded now."""
        if self._end and not self._begun and data.endswith(self._end) and MARK not in data:
            return data
        data, self._begun = self._begun + data, b""
        self._end = self._end or _end_of_events(data)
        if self._end == b"\r":  # Allowed, but no server uses it, so nothing is removed.
            return data
        whole, end, self._begun = data.rpartition(self._end or b"\n\n")
        return b"".join(event + end for event in (whole.split(end) if end else ()) if not _only_usage(event))

    def rest(self) -> bytes:
        """Returns the incomplete event at the end of the stream."""
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
