"""What a backend answers to a call: kept as it comes, understood in batches, so that the bytes are on their way first."""

from __future__ import annotations

from pytest_agentbench.records import OUTPUT_KINDS
from pytest_agentbench.tap.dialects import Dialect
from pytest_agentbench.tap.http_messages import Headers, header
from pytest_agentbench.tap.stream import EventReader, NetworkRead, decoder

LARGEST = 1 << 26  # bytes of an answer, as they come and as they are unpacked
MOST_EVENTS = 1 << 18
SLICE = 1 << 20  # bytes that are unpacked at once; a megabyte is a few milliseconds
BATCH = 32  # reads that are understood together, once the first event has been: those behind it are mostly like it


class BackendAnswer:
    """One answer, from its head to its end."""

    def __init__(self, dialect: Dialect, status: int, headers: Headers) -> None:
        self.reader = dialect()
        self.body = b""  # of an answer that is no stream, known at its end
        self._encoding = header(headers, b"content-encoding")
        self._decoder = decoder(self._encoding)
        kind = header(headers, b"content-type").lower()
        self._events = EventReader() if status == 200 and kind.startswith(b"text/event-stream") else None
        self._is_ok = status == 200
        self._reads: list[NetworkRead] = []
        self._unpacked: list[bytes] = []  # of an answer that is no stream
        self._size = self._unpacked_size = 0  # bytes
        self._last: NetworkRead | None = None  # that is being unpacked
        self.excess = ""  # why no more of it is taken

    def take(self, read: NetworkRead) -> None:
        self._size += len(read.data)
        if self._size > LARGEST:
            self._stop(f"the answer has more than {LARGEST} bytes")
        self._reads.append(read)
        if self._events is not None and (len(self._reads) >= BATCH or not self.reader.chunks):
            self.parse_pending()

    def parse_pending(self) -> None:
        """Understands what has come of a stream."""
        if self._events is None or not (self._reads or self._has_more()):
            return
        if self.reader.error_kind or self.excess:  # what comes behind a fault is passed on, and not understood
            self._reads = []
            return
        try:
            self._read(self._events, self._decoded())
        except ValueError as error:
            self._failed(error)
        if len(self.reader.chunks) > MOST_EVENTS:
            self._stop(f"the answer has more than {MOST_EVENTS} events")

    def decompress(self) -> bool:
        """Unpacks a slice of a whole answer that is packed; whether there is more of it."""
        if not self._encoding or self.reader.error_kind or self.excess:
            return False
        if self._events is not None:
            self.parse_pending()
        else:
            self._unpack()
        return bool(self._reads or self._has_more())

    def _unpack(self) -> None:
        try:
            self._unpacked += [read.data for read in self._decoded()]
        except ValueError as error:
            self._failed(error)

    def _has_more(self) -> bool:
        return self._decoder is not None and self._decoder.has_more

    def _decoded(self) -> list[NetworkRead]:
        """What has come and was not understood yet; of a packed answer a slice of it."""
        if not self._encoding:
            reads, self._reads = self._reads, []
            return reads
        if self._decoder is None:
            raise ValueError(f"the tap cannot read the content-encoding {self._encoding.decode('latin-1')!r}")
        left, plain = SLICE, []
        while left > 0 and (self._reads or self._decoder.has_more):
            data = b""
            if not self._decoder.has_more or self._last is None:
                self._last = self._reads.pop(0)
                data = self._last.data
            piece = self._decoder.decode(data, left)
            left -= len(piece)
            plain.append(self._last._replace(data=piece))
        self._unpacked_size += SLICE - left
        if self._unpacked_size > LARGEST:
            self._stop(f"the answer has more than {LARGEST} bytes when it is unpacked")
            return []
        return plain

    def _read(self, events: EventReader, reads: list[NetworkRead]) -> None:
        while reads:
            length = self.reader.take_repeated(reads) if events.between_events else 0
            for event in events.feed(reads[length : length + 1]):
                self.reader.add(event)
            reads = reads[length + 1 :]

    def end(self, is_complete: bool) -> None:
        """There is no more. Of a packed answer that did not come whole one slice more is understood."""
        while is_complete and self.decompress():
            pass
        if self._events is not None:
            self.parse_pending()
            if is_complete and not (self.reader.done or self.reader.error_kind):
                self._end_coding()
            self.reader.end()
        else:
            self._read_body(is_complete)
        self._reads = []

    def last_output_ns(self) -> int | None:
        """When the last content, reasoning or tool call came."""
        self.parse_pending()
        return next((chunk.at_ns for chunk in reversed(self.reader.chunks) if chunk.kind in OUTPUT_KINDS), None)

    def _read_body(self, is_complete: bool) -> None:
        if not self.reader.error_kind:
            self._unpack()
        self.body = b"".join(self._unpacked)
        if self.reader.error_kind:
            return
        if self._is_ok and is_complete and self.body:
            self.reader.whole(self.body)
            self._end_coding()
        elif self._is_ok and is_complete:
            self.reader.error_kind, self.reader.error = "empty", "the answer has no body"

    def _end_coding(self) -> None:
        """Names a coding that lacks its end, although the body has come to its own."""
        try:
            if self._decoder is not None:
                self._decoder.end()
        except ValueError as error:
            self._failed(error)

    def _stop(self, why: str) -> None:
        self.excess = why
        self.reader.error_kind, self.reader.error = "too_large", why
        self._reads, self._unpacked = [], []

    def _failed(self, error: ValueError) -> None:
        self.reader.error_kind, self.reader.error = "encoding", str(error)
