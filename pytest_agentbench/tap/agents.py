"""Connections from agents. Each request is read completely before it is forwarded, one at a time; answers are forwarded as they arrive."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from typing import NamedTuple, Protocol, cast

import httptools

from pytest_agentbench.tap.cpu_turns import FairQueue
from pytest_agentbench.tap.exchange import Carrier, Exchange
from pytest_agentbench.tap.http_messages import JSON_TYPE, Headers, Request, end_to_end, error_body, header, response_head, split_target

LARGEST = 1 << 27  # bytes of a request
LARGEST_UNIDENTIFIED = 1 << 14  # bytes of a request that is not, or not yet, known to be for the address of a rollout
MOST_UNIDENTIFIED = 4096  # connections that have not yet named the address of a rollout; one more closes the oldest
AHEAD = 1 << 16  # bytes of later requests that are read while one is being answered
RESET = struct.pack("ii", 1, 0)  # value of SO_LINGER that makes close() send RST


class Arrival(NamedTuple):
    """A complete request that waits until the earlier requests on its connection are answered."""

    id: str
    request: Request
    keep_alive: bool


class Refusal(NamedTuple):
    """The error answer to a request that is not forwarded."""

    status: int
    message: str
    kind: str | None = None  # `code` of the error object


#: Answer to requests whose path is not the address of a rollout.
UNKNOWN_ADDRESS = Refusal(404, "no rollout has this address; send requests to the address in OPENAI_BASE_URL")
TOO_LONG = Refusal(431, f"the head of the request is larger than {LARGEST_UNIDENTIFIED} bytes; send a shorter URL and fewer headers")


class RolloutRegister(Protocol):
    """The part of the `Relay` (the state of the tap) that agents' connections use.

    `knows` returns whether a rollout has the address /r/<id>, `refusal` returns the error answer to a request that is not forwarded, and
    `begin` forwards a request.
    """

    work_queue: FairQueue
    unidentified: dict[AgentConnection, None]  # connections that have not yet named the address of a rollout, oldest first

    def knows(self, id: str) -> bool: ...

    def refusal(self, id: str, request: Request) -> Refusal | None: ...

    def begin(self, id: str, agent: AgentConnection, request: Request) -> Exchange: ...


class AgentConnection(asyncio.Protocol):
    """One connection from an agent. It has at most one exchange (a request that is being answered) at a time.

    Complete requests are queued in `waiting`; `_next` starts the next one when the exchange before it has ended. A `Refusal` in the
    queue is the last entry: after it nothing more is read (`done`), because the rest of the data cannot be parsed. Requests before it
    are still answered.

    Reading stops while more than AHEAD bytes of later requests are stored, and no exchange starts while the agent does not read (`full`).
    """

    transport: asyncio.Transport

    def __init__(self, relay: RolloutRegister) -> None:
        self.relay, self.work_queue = relay, relay.work_queue
        self.parser = httptools.HttpRequestParser(self)
        self.waiting: deque[Arrival | Refusal] = deque()  # pipelined requests
        self.exchange: Exchange | None = None
        self.upstream: Carrier | None = None  # backend connection of the exchange
        self.keep_alive = True  # whether the connection stays open after the exchange
        self.framing = b""  # framing of the answer's body: chunked, content-length or close
        self.started = False  # whether the head of the answer has been sent
        self.done = False  # whether no further request is read
        self.reading = True
        self.full = False  # whether the write buffer is full, because the agent reads more slowly than the answer arrives
        self.expects_continue = False  # whether the client waits for `100 Continue`, which follows the answers to earlier requests
        self.size = 0  # bytes of the request that is arriving
        self.known = False  # whether the path of that request is the address of a rollout
        self.ahead = 0  # bytes that arrived while an exchange was running
        self.body: list[bytes] = []
        self.url = b""
        self.headers: Headers = []
        self.head_is_whole = False

    @property
    def is_closing(self) -> bool:
        """Whether the agent's connection is closed or closing. Data written to it is lost."""
        return self.transport.is_closing()

    def start_answer(self, status: int, headers: Headers) -> None:
        """Sends the head of an answer whose body follows in pieces."""
        assert self.exchange is not None
        self.started = True
        kept = end_to_end(headers)
        if self.exchange.request.method == b"HEAD" or status in (204, 304) or header(kept, b"content-length"):
            self.framing = b"content-length"
        elif self.parser.get_http_version() == "1.0":
            self.framing, self.keep_alive = b"close", False
        else:
            self.framing = b"chunked"
            kept.append((b"transfer-encoding", b"chunked"))
        self._write_head(status, kept)

    def pass_on(self, data: bytes) -> None:
        self.transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self.framing == b"chunked" else data)

    def end_answer(self) -> None:
        if self.framing == b"chunked":
            self.transport.write(b"0\r\n\r\n")

    def end_interrupted_answer(self, is_complete: bool) -> None:
        """Ends an answer that the backend interrupted.

        `is_complete` means that only the end of the framing is missing; the answer then ends normally. Otherwise the agent can see
        that it is truncated.
        """
        self.keep_alive = False
        if is_complete:
            self.end_answer()
        elif self.framing == b"close":  # A normal close would look like the end of the answer.
            self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            self.transport.abort()

    def answer(self, status: int, body: bytes, headers: Headers | None = None) -> None:
        """Sends a complete answer."""
        self._write_head(status, [*(headers or [JSON_TYPE]), (b"content-length", b"%d" % len(body))], body)

    def exchange_ended(self, exchange: Exchange) -> None:
        self.exchange = None
        upstream, self.upstream = self.upstream, None
        if upstream is not None and upstream.exchange is exchange:  # The tap ended the exchange, not the backend.
            upstream.close()
        if self.keep_alive:
            self._next()
        else:
            self.transport.close()

    def abandon(self) -> None:
        """Aborts the connection and the exchange (the request that is being answered), because the rollout has ended."""
        self.transport.abort()
        self._leave("the rollout ended before the answer was complete")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's transport has the methods, but not the base class.
        self.relay.unidentified[self] = None
        if len(self.relay.unidentified) > MOST_UNIDENTIFIED:
            oldest = next(iter(self.relay.unidentified))
            del self.relay.unidentified[oldest]
            oldest.transport.abort()

    def data_received(self, data: bytes) -> None:
        if self.done:
            return
        if self.exchange is not None or self.waiting:
            self.ahead += len(data)
        self.size += len(data)
        try:
            self._parse(data)
        except httptools.HttpParserError as error:
            self._refuse(Refusal(400, f"not an HTTP request: {error}"))
        if self.size > LARGEST:
            self._refuse(Refusal(413, f"the request is larger than {LARGEST} bytes"))
        elif self.size > LARGEST_UNIDENTIFIED and not self.known:
            self._refuse(UNKNOWN_ADDRESS if self.head_is_whole else TOO_LONG)
        self.work_queue.take(self._next)

    def connection_lost(self, _: Exception | None) -> None:
        self.relay.unidentified.pop(self, None)
        self._leave("the agent closed the connection before the answer was complete")

    def pause_writing(self) -> None:
        """Stops reading from the backend while the agent reads too slowly."""
        self.full = True
        if self.upstream is not None:
            self.upstream.pause()

    def resume_writing(self) -> None:
        self.full = False
        if self.upstream is not None:
            self.upstream.resume()
        self._next()

    def on_message_begin(self) -> None:
        self.url, self.headers = b"", []
        self.head_is_whole = self.known = False

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.head_is_whole:  # Trailers are dropped.
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        self.head_is_whole = True
        self.known = self.relay.knows(split_target(self.url.decode("latin-1"))[0])
        if self.known:
            self.relay.unidentified.pop(self, None)
        self.expects_continue = header(self.headers, b"expect").lower() == b"100-continue" and self.parser.get_http_version() != "1.0"

    def on_body(self, data: bytes) -> None:
        if not self.done:
            self.body.append(data)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return  # The parser reads no body after an Upgrade header; `_parse` parses the request again without it.
        id, path = split_target(self.url.decode("latin-1"))
        request = Request(self.parser.get_method(), path, self.headers, b"".join(self.body))
        self.waiting.append(Arrival(id, request, self.parser.should_keep_alive()))
        self.size, self.body, self.expects_continue = 0, [], False

    def _parse(self, data: bytes) -> None:
        while not self.done:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as offer:  # For example an offer of HTTP/2.
                data = self._declined() + data[offer.args[0] :]

    def _declined(self) -> bytes:
        """Declines the upgrade to another protocol: returns the head of the request without its Upgrade header, to be parsed again."""
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        if method == b"CONNECT":
            self._refuse(Refusal(405, "CONNECT is not supported; send requests to the address in OPENAI_BASE_URL"))
        self.parser = httptools.HttpRequestParser(self)
        kept = [b"%b: %b" % each for each in self.headers if each[0].lower() != b"upgrade"]
        return b"\r\n".join((b"%b %b HTTP/%b" % (method, self.url, version), *kept, b"\r\n"))

    def _refuse(self, refusal: Refusal) -> None:
        """Queues a refusal as the last answer on this connection. Requests before it are still answered."""
        if not self.done:
            self.done, self.body = True, []
            self.waiting.append(refusal)

    def _next(self) -> None:
        """Starts the next request, if no exchange is running. Sends `100 Continue` if a client waits for it."""
        while self.waiting and self.exchange is None and not self.full and not self.transport.is_closing():
            self._begin(self.waiting.popleft())
        idle = self.exchange is None and not self.waiting
        if idle and self.expects_continue:
            self.expects_continue = False
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._set_reading(idle or self.ahead <= AHEAD)
        self.ahead = 0 if idle else self.ahead

    def _begin(self, arrival: Arrival | Refusal) -> None:
        if isinstance(arrival, Refusal):
            self._send_refusal(*arrival, keep_alive=False)
        elif (refusal := self.relay.refusal(arrival.id, arrival.request)) is not None:
            self._send_refusal(*refusal, keep_alive=arrival.keep_alive)
        else:
            self.keep_alive, self.started = arrival.keep_alive, False
            self.exchange = self.relay.begin(arrival.id, self, arrival.request)

    def _send_refusal(self, status: int, message: str, kind: str | None = None, *, keep_alive: bool) -> None:
        self.keep_alive = keep_alive
        self.answer(status, error_body(status, message, kind))
        if not keep_alive:
            self.transport.close()

    def _set_reading(self, reading: bool) -> None:
        if reading != self.reading and not self.transport.is_closing():
            self.reading = reading
            (self.transport.resume_reading if reading else self.transport.pause_reading)()

    def _leave(self, why: str) -> None:
        self.waiting.clear()
        self.keep_alive = False
        if self.exchange is not None:
            self.exchange.failed("client_gone", why)

    def _write_head(self, status: int, headers: Headers, body: bytes = b"") -> None:
        closing = [] if self.keep_alive else [(b"connection", b"close")]
        self.transport.write(response_head(status, headers + closing) + body)
