"""Connections to the backend: kept alive, taken from a free list, as many as there are calls in flight."""

from __future__ import annotations

import asyncio
import re
import ssl
import time
from typing import cast
from urllib.parse import urlsplit

import httptools

from pytest_agentbench.tap.exchange import Exchange
from pytest_agentbench.tap.heads import Headers, header, request_head

ADDRESS = re.compile(r"https?://[!-~]+")
KEY = re.compile(r"[!-~]*")


class Upstream:
    """Where calls go."""

    def __init__(self, url: str, api_key: str | None = None, ca_file: str | None = None) -> None:
        """Raises ValueError or OSError for what cannot be an address, a key or a file of certificates."""
        parts = urlsplit(url)
        if not ADDRESS.fullmatch(url) or not parts.hostname:
            raise ValueError("it is no http:// or https:// address")
        if not KEY.fullmatch(api_key or ""):
            raise ValueError("its key is none")
        self.host, self.port = parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
        self.base, self.query = parts.path.rstrip("/"), parts.query
        self.authority = parts.netloc.rpartition("@")[2]
        self.own = [(b"host", self.authority.encode()), (b"accept-encoding", b"identity")]
        if api_key:
            self.own.append((b"authorization", b"Bearer " + api_key.encode()))
        self.tls = ssl.create_default_context(cafile=ca_file) if parts.scheme == "https" else None
        self.idle: list[UpstreamConnection] = []
        self.connecting: set[asyncio.Task[None]] = set()
        self.closed = False

    def send(self, exchange: Exchange) -> None:
        """Sends a request on a free connection or a new one; what comes of it the exchange is told."""
        request = self._head(exchange) + exchange.body
        while self.idle:
            connection = self.idle.pop()
            if not connection.transport.is_closing():
                connection.start(exchange, request)
                return
        self.send_on_new(exchange, request)

    def send_on_new(self, exchange: Exchange, request: bytes) -> None:
        task = asyncio.get_running_loop().create_task(self._connect(exchange, request))
        self.connecting.add(task)
        task.add_done_callback(self.connecting.discard)

    def close(self) -> None:
        """No further exchange comes this way; those on their way are not disturbed."""
        self.closed = True
        for connection in self.idle:
            connection.transport.abort()

    async def _connect(self, exchange: Exchange, request: bytes) -> None:
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(lambda: UpstreamConnection(self), self.host, self.port, ssl=self.tls)
        except (OSError, ValueError) as error:  # ValueError: a host name that cannot be one
            exchange.failed("connect", f"no connection to {self.authority}: {error}")
            return
        if exchange.over:  # the agent left in the meantime
            connection.rest()
        else:
            connection.start(exchange, request)

    def _head(self, exchange: Exchange) -> bytes:
        request = exchange.request
        query = f"{'&' if '?' in request.path else '?'}{self.query}" if self.query else ""
        own = [*self.own, (b"content-length", b"%d" % len(exchange.body))]
        return request_head(request.method, self.base + request.path + query, request.headers, own)


class UpstreamConnection(asyncio.Protocol):
    """One connection; it carries one exchange at a time."""

    transport: asyncio.Transport

    def __init__(self, upstream: Upstream) -> None:
        self.upstream = upstream
        self.exchange: Exchange | None = None
        self.request = b""
        self.rested = False  # it lay idle, so the backend may have closed it

    def start(self, exchange: Exchange, request: bytes) -> None:
        self.exchange, self.request = exchange, request
        self.parser = httptools.HttpResponseParser(self)
        self.headers: Headers = []
        self.status = 0  # of the final answer, once its head is there
        self.answered = False  # a byte came
        self.until_close = False  # nothing but the end of the connection ends the answer
        self.complete = False
        self.reusable = False  # for another exchange
        self.surplus = False  # something came behind the answer
        self.pieces: list[bytes] = []  # of the body, in this read
        exchange.agent.upstream = self
        exchange.sent_ns = None
        self.transport.write(request)
        if not self.transport.get_write_buffer_size():
            exchange.sent()

    def hold(self) -> None:
        """Reads nothing until `go_on`."""
        if not self.transport.is_closing():
            self.transport.pause_reading()

    def go_on(self) -> None:
        if not self.transport.is_closing():
            self.transport.resume_reading()

    def rest(self) -> None:
        """Waits for the next exchange."""
        self.exchange, self.request, self.rested = None, b"", True
        self.go_on()
        if self.upstream.closed:
            self.transport.abort()
        elif not self.transport.is_closing():
            self.upstream.idle.append(self)

    def close(self) -> None:
        """Ends the connection; the exchange on it is over already."""
        self.exchange = None
        self.transport.abort()

    # -------------------------------------------------------------------------------- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's has the methods, but not the base class
        self.transport.set_write_buffer_limits(high=0)  # resume_writing then means: all of the request is written

    def resume_writing(self) -> None:
        if self.exchange is not None:
            self.exchange.sent()

    def data_received(self, data: bytes) -> None:
        at_ns = time.monotonic_ns()
        exchange = self.exchange
        if exchange is None:  # an answer to nothing: this connection is of no use any more
            self.transport.abort()
            return
        self.answered, self.request = True, b""
        fault = self._parse(data)
        if self.status and exchange.status is None:
            exchange.headers_arrived(self.status, self.headers)
        if self.pieces:
            exchange.body_arrived(at_ns, b"".join(self.pieces))
            self.pieces = []
        if self.complete:
            self._complete(exchange, clean=not fault)
        elif fault:
            self.close()
            exchange.failed("cut", f"the backend's answer is not HTTP: {fault}")

    def connection_lost(self, error: Exception | None) -> None:
        if self in self.upstream.idle:
            self.upstream.idle.remove(self)
        exchange, self.exchange = self.exchange, None
        if exchange is None or exchange.over:
            return
        if self.rested and not self.answered:  # it had been closed while it lay idle
            self.upstream.send_on_new(exchange, self.request)
        elif self.until_close and error is None:
            exchange.completed()
        else:
            exchange.failed("cut", f"the backend closed the connection {'in the middle of' if self.answered else 'before'} its answer")

    # -------------------------------------------------------------------------------- httptools

    def on_message_begin(self) -> None:
        self.headers = self.headers if self.status else []  # those of a `100 Continue` are forgotten
        self.surplus = self.complete

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.status:  # trailers are dropped
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        status = self.parser.get_status_code()
        if status < 200 or self.complete or self.exchange is None:
            return
        self.status = status
        chunked = b"chunked" in header(self.headers, b"transfer-encoding").lower()
        self.until_close = not chunked and not header(self.headers, b"content-length")
        self.complete = self.exchange.request.method == b"HEAD"  # its answer has a length, but no body

    def on_body(self, data: bytes) -> None:
        if not self.complete:
            self.pieces.append(data)

    def on_message_complete(self) -> None:
        if self.status and not self.complete:
            self.complete, self.reusable = True, self.parser.should_keep_alive()  # which it knows only now

    # -------------------------------------------------------------------------------- parts

    def _parse(self, data: bytes) -> str:
        """Feeds the parser; returns what is wrong with what came."""
        try:
            self.parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            return str(error) or type(error).__name__
        return "something came behind the answer" if self.surplus else ""

    def _complete(self, exchange: Exchange, clean: bool) -> None:
        """The connection is free before the exchange ends, so that the next one may take it at once."""
        if clean and self.reusable and not self.transport.get_write_buffer_size():
            self.rest()
        else:
            self.close()
        exchange.completed()
