"""Connections of agents: requests are taken whole and one by one, answers are passed on as they come."""

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

LARGEST = 1 << 27  # bytes of one request
LARGEST_UNIDENTIFIED = 1 << 14  # bytes of one that does not come to the address of a rollout, or does not say so yet
MOST_UNIDENTIFIED = 4096  # connections that have not asked for anything; one more, and the oldest is closed
AHEAD = 1 << 16  # bytes of later requests that are read while one is being answered
RESET = struct.pack("ii", 1, 0)  # of SO_LINGER: a socket that closes sends RST


class Arrival(NamedTuple):
    """A request that waits for its turn."""

    id: str
    request: Request
    keep_alive: bool


class Refusal(NamedTuple):
    """Why a request is not relayed, or why there can be no further one."""

    status: int
    message: str
    kind: str | None = None  # of the error that the agent gets


#: What is said to those who do not come to a rollout's address.
UNKNOWN_ADDRESS = Refusal(404, "no rollout has this address; agents get theirs as OPENAI_BASE_URL")
TOO_LONG = Refusal(431, f"the head of a request may have {LARGEST_UNIDENTIFIED} bytes")


class RolloutRegister(Protocol):
    """Who knows the rollouts, and lets their requests begin."""

    work_queue: FairQueue
    unidentified: dict[AgentConnection, None]  # connections that have not asked for anything; oldest first

    def knows(self, id: str) -> bool: ...

    def refusal(self, id: str, request: Request) -> Refusal | None: ...

    def begin(self, id: str, agent: AgentConnection, request: Request) -> Exchange: ...


class AgentConnection(asyncio.Protocol):
    """One connection of an agent; it carries one exchange at a time."""

    transport: asyncio.Transport

    def __init__(self, relay: RolloutRegister) -> None:
        self.relay, self.work_queue = relay, relay.work_queue
        self.parser = httptools.HttpRequestParser(self)
        self.waiting: deque[Arrival | Refusal] = deque()  # pipelined requests
        self.exchange: Exchange | None = None
        self.upstream: Carrier | None = None  # that the exchange is on
        self.keep_alive = True  # after the exchange
        self.framing = b""  # of the answer's body: chunked, content-length or close
        self.started = False  # the answer's head is out
        self.done = False  # no further request is taken
        self.reading = True
        self.full = False  # the agent reads more slowly than answers come
        self.expects_continue = False  # a client waits for `100 Continue` until the answers before it are out
        self.size = 0  # bytes of the request that is arriving
        self.known = False  # whether it comes to the address of a rollout
        self.ahead = 0  # bytes that came while an exchange was running
        self.body: list[bytes] = []
        self.url = b""
        self.headers: Headers = []
        self.head_is_whole = False

    @property
    def is_closing(self) -> bool:
        """Whether nobody reads any more what is written."""
        return self.transport.is_closing()

    def start_answer(self, status: int, headers: Headers) -> None:
        """The head of an answer whose body comes bit by bit."""
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
        """The backend's answer broke off, and so does this one, unless only the end of its framing is missing."""
        self.keep_alive = False
        if is_complete:
            self.end_answer()
        elif self.framing == b"close":  # an orderly end would look like the answer's
            self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            self.transport.abort()

    def answer(self, status: int, body: bytes, headers: Headers | None = None) -> None:
        """A whole answer."""
        self._write_head(status, [*(headers or [JSON_TYPE]), (b"content-length", b"%d" % len(body))], body)

    def exchange_ended(self, exchange: Exchange) -> None:
        self.exchange = None
        upstream, self.upstream = self.upstream, None
        if upstream is not None and upstream.exchange is exchange:  # broken off from this side
            upstream.close()
        if self.keep_alive:
            self._next()
        else:
            self.transport.close()

    def abandon(self) -> None:
        """The rollout is over: whatever it still asked for is broken off."""
        self.transport.abort()
        self._leave("the rollout ended before the answer was whole")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's has the methods, but not the base class
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
            self._refuse(Refusal(413, f"a request may have {LARGEST} bytes"))
        elif self.size > LARGEST_UNIDENTIFIED and not self.known:
            self._refuse(UNKNOWN_ADDRESS if self.head_is_whole else TOO_LONG)
        self.work_queue.take(self._next)

    def connection_lost(self, _: Exception | None) -> None:
        self.relay.unidentified.pop(self, None)
        self._leave("the agent closed the connection before the answer was whole")

    def pause_writing(self) -> None:
        """The agent reads too slowly: so does the tap."""
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
        if not self.head_is_whole:  # trailers are dropped
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
            return  # the parser knows no body of a request that offers another protocol: see _parse
        id, path = split_target(self.url.decode("latin-1"))
        request = Request(self.parser.get_method(), path, self.headers, b"".join(self.body))
        self.waiting.append(Arrival(id, request, self.parser.should_keep_alive()))
        self.size, self.body, self.expects_continue = 0, [], False

    def _parse(self, data: bytes) -> None:
        while not self.done:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as offer:  # of HTTP/2, say
                data = self._declined() + data[offer.args[0] :]

    def _declined(self) -> bytes:
        """The head of the request that has just been parsed, without its offer of another protocol: HTTP/1.1 goes on."""
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        if method == b"CONNECT":
            self._refuse(Refusal(405, "this is no proxy"))
        self.parser = httptools.HttpRequestParser(self)
        kept = [b"%b: %b" % each for each in self.headers if each[0].lower() != b"upgrade"]
        return b"\r\n".join((b"%b %b HTTP/%b" % (method, self.url, version), *kept, b"\r\n"))

    def _refuse(self, refusal: Refusal) -> None:
        """Nothing that comes on this connection can be understood any more; what was asked before is still answered."""
        if not self.done:
            self.done, self.body = True, []
            self.waiting.append(refusal)

    def _next(self) -> None:
        """Begins with the next request, if it is its turn."""
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
