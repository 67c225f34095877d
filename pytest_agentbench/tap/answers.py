"""What a backend answers to a call: kept as it comes, understood in batches, so that the bytes are on their way first."""

from __future__ import annotations

from pytest_agentbench.records import OUTPUT_KINDS
from pytest_agentbench.tap.dialects import Dialect
from pytest_agentbench.tap.encoding import decoder
from pytest_agentbench.tap.heads import Headers, header
from pytest_agentbench.tap.stream import EventReader, Read

BATCH = 32  # reads that are understood together, once the first event has been: those behind it are mostly like it


class Answer:
    """One answer, from its head to its end."""

    def __init__(self, dialect: Dialect, status: int, headers: Headers) -> None:
        self.reading = dialect()
        self.body = b""  # of an answer that is no stream, known at its end
        self._encoding = header(headers, b"content-encoding")
        self._decoder = decoder(self._encoding)
        kind = header(headers, b"content-type").lower()
        self._events = EventReader() if status == 200 and kind.startswith(b"text/event-stream") else None
        self._well = status == 200
        self._reads: list[Read] = []

    def take(self, read: Read) -> None:
        self._reads.append(read)
        if self._events is not None and (len(self._reads) >= BATCH or not self.reading.chunks):
            self.digest()

    def digest(self) -> None:
        """Understands what has come of a stream."""
        if self._events is None or not self._reads:
            return
        reads, self._reads = self._reads, []
        if self.reading.error_kind:  # what comes behind a fault is passed on, and not understood
            return
        try:
            if self._encoding:
                reads = [read._replace(data=self._decoded(read.data)) for read in reads]
            self._read(self._events, reads)
        except ValueError as error:
            self._failed(error)

    def _read(self, events: EventReader, reads: list[Read]) -> None:
        while reads:
            taken = self.reading.go_on(reads) if events.between_events else 0
            for event in events.feed(reads[taken : taken + 1]):
                self.reading.add(event)
            reads = reads[taken + 1 :]

    def end(self, came_whole: bool) -> None:
        """There is no more."""
        if self._events is not None:
            self.digest()
            if came_whole and not (self.reading.done or self.reading.error_kind):
                self._end_coding()
            self.reading.end()
        else:
            self._read_body(came_whole)
        self._reads = []

    def last_output_ns(self) -> int | None:
        """When the last content, reasoning or tool call came."""
        self.digest()
        return next((chunk.at_ns for chunk in reversed(self.reading.chunks) if chunk.kind in OUTPUT_KINDS), None)

    def _read_body(self, came_whole: bool) -> None:
        try:
            self.body = self._decoded(b"".join(read.data for read in self._reads))
        except ValueError as error:
            self._failed(error)
            return
        if self._well and came_whole and self.body:
            self.reading.whole(self.body)
            self._end_coding()
        elif self._well and came_whole:
            self.reading.error_kind, self.reading.error = "empty", "the answer has no body"

    def _decoded(self, data: bytes) -> bytes:
        if self._decoder is None:
            raise ValueError(f"the tap cannot read the content-encoding {self._encoding.decode('latin-1')!r}")
        return self._decoder.decode(data)

    def _end_coding(self) -> None:
        """Names a coding that lacks its end, although the body has come to its own."""
        try:
            if self._decoder is not None:
                self._decoder.end()
        except ValueError as error:
            self._failed(error)

    def _failed(self, error: ValueError) -> None:
        self.reading.error_kind, self.reading.error = "encoding", str(error)
