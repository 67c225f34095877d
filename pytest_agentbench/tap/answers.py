"""Answers of backends to LLM calls. Data is stored as it arrives and parsed in batches, after it was forwarded to the agent."""

from __future__ import annotations

from pytest_agentbench.records import OUTPUT_KINDS
from pytest_agentbench.tap.dialects import Dialect
from pytest_agentbench.tap.http_messages import Headers, header
from pytest_agentbench.tap.stream import EventReader, NetworkRead, decoder

LARGEST = 1 << 26  # bytes of an answer, both as received and decompressed
MOST_EVENTS = 1 << 18
SLICE = 1 << 20  # bytes that are decompressed at once; a megabyte takes a few milliseconds
BATCH = 32  # reads that are parsed together, after the first event


class BackendAnswer:
    """The backend's answer to one LLM call. `take` adds data, `end` finishes parsing, and `reader` then has the result or the fault.

    Until the first event of a stream, each `take` parses its data. Afterwards the data of BATCH calls of `take` is parsed together, so that
    forwarding is not delayed. After a fault, or if the answer is too large (`excess` says so), data is no longer parsed.
    """

    def __init__(self, dialect: Dialect, status: int, headers: Headers) -> None:
        self.reader = dialect()
        self.body = b""  # decompressed body of an answer that is not a stream; set by `end`
        self._encoding = header(headers, b"content-encoding")
        self._decoder = decoder(self._encoding)
        kind = header(headers, b"content-type").lower()
        self._events = EventReader() if status == 200 and kind.startswith(b"text/event-stream") else None
        self._is_ok = status == 200
        self._reads: list[NetworkRead] = []
        self._decompressed: list[bytes] = []  # decompressed data of an answer that is not a stream
        self._size = self._decompressed_size = 0  # bytes
        self._last: NetworkRead | None = None  # the read that is being decompressed
        self.excess = ""  # sentence about the limit that was exceeded; empty if none was

    def take(self, read: NetworkRead) -> None:
        self._size += len(read.data)
        if self._size > LARGEST:
            self._stop(f"the answer has more than {LARGEST} bytes")
        self._reads.append(read)
        if self._events is not None and (len(self._reads) >= BATCH or not self.reader.chunks):
            self.parse_pending()

    def parse_pending(self) -> None:
        """Parses the data of a stream that `take` has stored. If it is compressed, at most SLICE decompressed bytes are parsed."""
        if self._events is None or not (self._reads or self._has_more()):
            return
        if self.reader.error_kind or self.excess:  # Data after a fault is forwarded, but not parsed.
            self._reads = []
            return
        try:
            self._read(self._events, self._decoded())
        except ValueError as error:
            self._failed(error)
        if len(self.reader.chunks) > MOST_EVENTS:
            self._stop(f"the answer has more than {MOST_EVENTS} events")

    def decompress(self) -> bool:
        """Decompresses at most SLICE more bytes of a complete answer. Returns whether any compressed data is left."""
        if not self._encoding or self.reader.error_kind or self.excess:
            return False
        if self._events is not None:
            self.parse_pending()
        else:
            self._decompress_body()
        return bool(self._reads or self._has_more())

    def _decompress_body(self) -> None:
        try:
            self._decompressed += [read.data for read in self._decoded()]
        except ValueError as error:
            self._failed(error)

    def _has_more(self) -> bool:
        return self._decoder is not None and self._decoder.has_more

    def _decoded(self) -> list[NetworkRead]:
        """Returns the stored data that was not parsed yet. If the answer is compressed, returns at most SLICE decompressed bytes."""
        if not self._encoding:
            reads, self._reads = self._reads, []
            return reads
        if self._decoder is None:
            raise ValueError(
                f"the tap cannot read the content-encoding {self._encoding.decode('latin-1')!r}; make the server send uncompressed answers"
            )
        left, plain = SLICE, []
        while left > 0 and (self._reads or self._decoder.has_more):
            data = b""
            if not self._decoder.has_more or self._last is None:
                self._last = self._reads.pop(0)
                data = self._last.data
            piece = self._decoder.decode(data, left)
            left -= len(piece)
            plain.append(self._last._replace(data=piece))
        self._decompressed_size += SLICE - left
        if self._decompressed_size > LARGEST:
            self._stop(f"the answer has more than {LARGEST} bytes when decompressed")
            return []
        return plain

    def _read(self, events: EventReader, reads: list[NetworkRead]) -> None:
        while reads:
            length = self.reader.take_repeated(reads) if events.between_events else 0
            for event in events.feed(reads[length : length + 1]):
                self.reader.add(event)
            reads = reads[length + 1 :]

    def end(self, is_complete: bool) -> None:
        """Parses the rest of the data. A complete answer is decompressed to its end, a truncated one by at most SLICE more bytes."""
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
        """Returns the time of the last content, reasoning or tool call, in monotonic nanoseconds, or None."""
        self.parse_pending()
        return next((chunk.at_ns for chunk in reversed(self.reader.chunks) if chunk.kind in OUTPUT_KINDS), None)

    def _read_body(self, is_complete: bool) -> None:
        if not self.reader.error_kind:
            self._decompress_body()
        self.body = b"".join(self._decompressed)
        if self.reader.error_kind:
            return
        if self._is_ok and is_complete and self.body:
            self.reader.read_complete(self.body)
            self._end_coding()
        elif self._is_ok and is_complete:
            self.reader.error_kind, self.reader.error = "empty", "the answer has no body"

    def _end_coding(self) -> None:
        """Records a fault if the compressed data is truncated although the body is complete."""
        try:
            if self._decoder is not None:
                self._decoder.end()
        except ValueError as error:
            self._failed(error)

    def _stop(self, why: str) -> None:
        self.excess = why
        self.reader.error_kind, self.reader.error = "too_large", why
        self._reads, self._decompressed = [], []

    def _failed(self, error: ValueError) -> None:
        self.reader.error_kind, self.reader.error = "encoding", str(error)
