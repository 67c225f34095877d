"""Connections to the backend. There are as many as calls in flight, and they are kept alive for the next calls. A request is sent once."""

from __future__ import annotations

import asyncio
import functools
import re
import socket
import ssl
import time
from typing import cast
from urllib.parse import urlsplit

import httptools
from aiohappyeyeballs import start_connection

from pytest_agentbench.lib.connection_security import of_key, of_tls
from pytest_agentbench.tap.clock import KernelClock, enable_timestamps
from pytest_agentbench.tap.connections import HostAddresses, IdleConnections, RateLimiter, TimestampedSocket, acknowledge_at_once
from pytest_agentbench.tap.exchange import Exchange
from pytest_agentbench.tap.http_messages import OWN, Headers, encode_headers, end_to_end, header, request_head
from pytest_agentbench.tap.protocol import UpstreamFacts
from pytest_agentbench.tap.stream import NetworkRead

ADDRESS = re.compile(r"https?://[!-~]+")
KEY = re.compile(r"[!-~]*")
LONGEST_HEAD = 1 << 18  # bytes of the head of an answer
CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,7})\r\n")


class Upstream:
    """A backend: its address, headers, rate limit and connections.

    `send` starts an exchange on an idle connection or a new one. `close` lets exchanges in flight finish, but keeps no connection.
    """

    def __init__(self, facts: UpstreamFacts) -> None:
        """Raises ValueError or OSError for an invalid address, API key, certificate file, header or rate."""
        self.facts = facts
        parts = urlsplit(facts.url)
        if not ADDRESS.fullmatch(facts.url) or not parts.hostname:
            raise ValueError("the address must be an http:// or https:// URL")
        if not KEY.fullmatch(facts.api_key or ""):
            raise ValueError("the API key must be printable ASCII without spaces")
        self.host, self.port = parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
        self.base, self.query = parts.path.rstrip("/"), parts.query
        self.authority = parts.netloc.rpartition("@")[2]
        self.own_headers = [(b"host", self.authority.encode()), (b"accept-encoding", b"identity")]
        if facts.api_key:
            self.own_headers.append((b"authorization", b"Bearer " + facts.api_key.encode()))
        self.own_headers += encode_headers(facts.headers)
        self.key_advice = of_key(facts.api_key_env, sent=any(name == b"authorization" for name, _ in self.own_headers))
        self.replaced = OWN | {name for name, _ in self.own_headers}  # headers of agents' requests that are not forwarded
        self.rate_limiter = None if facts.requests_per_minute is None else RateLimiter(facts.requests_per_minute)
        self.tls = ssl.create_default_context(cafile=facts.ca_file) if parts.scheme == "https" else None
        self.clock = KernelClock()
        self.addresses = HostAddresses(self.host, self.port)
        self.idle = IdleConnections(UpstreamConnection.is_quiet, UpstreamConnection.close)
        self.connecting: set[asyncio.Task[None]] = set()
        self.closed = False

    def send(self, exchange: Exchange) -> None:
        """Sends a request as soon as the rate limit permits. The connection then calls the methods of the exchange."""
        if self.rate_limiter is None:
            self.send_now(exchange)
        else:
            self.rate_limiter.take(lambda: exchange.over, functools.partial(self.send_now, exchange))

    def send_now(self, exchange: Exchange, held_ns: int = 0) -> None:
        """Sends a request on an idle or new connection. `held_ns` is how long the rate limit delayed it."""
        exchange.held_ns = held_ns
        exchange.begins()
        connection, exchange.repeats = self.idle.take()
        if connection is not None:
            connection.start(exchange)
            return
        task = asyncio.get_running_loop().create_task(self._connect(exchange))
        self.connecting.add(task)
        task.add_done_callback(self.connecting.discard)

    def close(self) -> None:
        """Closes the idle connections. Exchanges in flight continue, and their connections are closed afterwards."""
        self.closed = True
        self.idle.close()

    async def _connect(self, exchange: Exchange) -> None:
        budget = asyncio.timeout(exchange.budgets.connect)
        try:
            async with budget:
                connection = await self._connected()
        except (OSError, ValueError) as error:  # ValueError: an invalid host name
            if budget.expired():
                exchange.failed("timeout_connect", f"no connection to {self.authority} within {exchange.budgets.connect:g} s")
            else:
                why = of_tls(error, self.host, self.facts.ca_file) if isinstance(error, ssl.SSLError) else error
                exchange.failed("connect", f"no connection to {self.authority}: {why}")
            return
        if exchange.over:  # The agent disconnected in the meantime.
            connection.become_idle()
        else:
            connection.start(exchange)

    async def _connected(self) -> UpstreamConnection:
        """Opens a connection. It has kernel timestamps, except with TLS, because decrypted bytes cannot be assigned to packets."""
        loop = asyncio.get_running_loop()
        sock = await start_connection(await self.addresses.get(), happy_eyeballs_delay=0.25, loop=loop)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = UpstreamConnection(self, sock)
        if self.tls is None and enable_timestamps(sock):
            connection.transport = TimestampedSocket(sock, connection, self.clock)
            return connection
        name = None if self.tls is None else self.host
        await loop.create_connection(lambda: connection, sock=sock, ssl=self.tls, server_hostname=name)
        return connection

    def head(self, exchange: Exchange) -> bytes:
        """Returns the head of the request as the backend gets it."""
        request = exchange.request
        query = f"{'&' if '?' in request.path else '?'}{self.query}" if self.query else ""
        kept = end_to_end(request.headers, self.replaced)
        labels = [label for label in exchange.labels if not header(kept, label[0])]
        length = (b"content-length", b"%d" % len(exchange.backend_body.body))
        return request_head(request.method, self.base + request.path + query, [*self.own_headers, length, *labels, *kept])


class UpstreamConnection(asyncio.Protocol):
    """One connection to the backend, with one exchange at a time.

    It is idle, with `exchange` None, or it has an exchange, from `start` until the answer is complete, the connection fails, or `close`
    is called. After a complete answer it becomes idle again if the whole request was sent, HTTP allows that, and nothing unexpected has
    arrived.
    """

    transport: TimestampedSocket | asyncio.Transport

    def __init__(self, upstream: Upstream, sock: socket.socket) -> None:
        self.upstream = upstream
        self._socket = sock  # socket of the transport
        self.exchange: Exchange | None = None
        self.heard_ns: int | None = None  # arrival of the last data, monotonic nanoseconds

    def start(self, exchange: Exchange) -> None:
        self.exchange = exchange
        exchange.idle_since_ns = self.heard_ns
        self.parser = httptools.HttpResponseParser(self)
        self.headers: Headers = []
        self.status = 0  # status of the final answer; 0 before its head is complete
        self.answered = False  # whether any data has arrived
        self.head_size = 0  # bytes that arrived before the head was complete
        self.until_close = False  # whether the answer ends with the connection
        self.complete = False
        self.reusable = False  # whether the connection can be used for another exchange
        self.surplus = False  # whether data arrived after the answer
        self.between_chunks = False  # whether the last chunk of the body is complete and no data of the next one has arrived
        self.pieces: list[bytes] = []  # parts of the body in this read
        exchange.agent.upstream = self
        self.transport.writelines([self.upstream.head(exchange), exchange.backend_body.body])
        if not isinstance(self.transport, TimestampedSocket) and not self.transport.get_write_buffer_size():
            self.written(time.monotonic_ns())

    def pause(self) -> None:
        """Stops reading until `resume`. Does nothing if the connection is idle, so that it stays usable for the next call."""
        if self.exchange is not None and not self.transport.is_closing():
            self.transport.pause_reading()

    def resume(self) -> None:
        if not self.transport.is_closing():
            self.transport.resume_reading()

    def become_idle(self) -> None:
        """Makes the connection available for the next exchange, or closes it if the upstream is closed."""
        self.exchange = None
        self.resume()
        if self.upstream.closed or self.transport.is_closing():
            self.transport.abort()
        else:
            self.upstream.idle.add(self)

    def is_quiet(self) -> bool:
        """Returns whether there is nothing to read, not even the backend's close, so that a request sent now will probably be received."""
        if self.transport.is_closing():
            return False
        try:
            self._socket.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return True
        except OSError:
            return False
        return False

    def close(self) -> None:
        """Closes the connection without ending its exchange."""
        self.exchange = None
        self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Sets the transport. Only connections without kernel timestamps get this call."""
        transport = cast("asyncio.Transport", transport)  # uvloop's transport has the methods, but not the base class.
        transport.set_write_buffer_limits(high=0)  # So `resume_writing` means that the whole request is written.
        self.transport = transport

    def resume_writing(self) -> None:
        self.written(time.monotonic_ns())

    def data_received(self, data: bytes) -> None:
        self.arrived(time.monotonic_ns(), None, data)

    def written(self, at_ns: int) -> None:
        """Tells the exchange that the whole request was sent, and has the answer acknowledged without delay."""
        if self.exchange is not None:
            acknowledge_at_once(self._socket)
            self.exchange.sent(at_ns)

    def arrived(self, read_ns: int, lag_ns: int | None, data: bytes) -> None:
        exchange = self.exchange
        if exchange is None:  # The backend sent data without a request.
            self.transport.abort()
            return
        self.answered = True
        at_ns = self.heard_ns = read_ns - (lag_ns or 0)
        if self.between_chunks and (chunk := whole_chunk(data)):  # The usual case, handled without the parser.
            exchange.body_arrived(NetworkRead(at_ns, lag_ns, chunk))
            return
        fault = self._parse(data)
        self.head_size += 0 if self.status else len(data)
        if self.head_size > LONGEST_HEAD:
            self.close()
            exchange.failed("too_large", f"the head of the backend's answer has more than {LONGEST_HEAD} bytes")
            return
        if self.status and exchange.status is None:
            exchange.headers_arrived(self.status, self.headers, at_ns)
            if exchange.over:
                return
        if self.pieces:
            body = self.pieces[0] if len(self.pieces) == 1 else b"".join(self.pieces)
            self.pieces = []
            exchange.body_arrived(NetworkRead(at_ns, lag_ns, body))
            if exchange.over:
                return
        if self.complete:
            self._complete(exchange, clean=not fault)
        elif fault:
            self.close()
            exchange.failed("cut", f"the backend's answer is not HTTP: {fault}")

    def connection_lost(self, error: Exception | None) -> None:
        exchange, self.exchange = self.exchange, None
        if exchange is None:
            self.upstream.idle.remove(self)
        elif exchange.over:
            return
        elif self.until_close and error is None:
            exchange.completed()
        else:
            exchange.failed("cut", f"the backend closed the connection {'in the middle of' if self.answered else 'before'} its answer")

    def on_message_begin(self) -> None:
        self.headers = self.headers if self.status else []  # Drop the headers of `100 Continue`.
        self.surplus = self.complete

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.status:  # Trailers are dropped.
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        status = self.parser.get_status_code()
        if status < 200 or self.complete or self.exchange is None:
            return
        self.status = status
        chunked = self.between_chunks = b"chunked" in header(self.headers, b"transfer-encoding").lower()
        self.until_close = not chunked and not header(self.headers, b"content-length")
        self.complete = self.exchange.request.method == b"HEAD"  # Its answer may have a length, but has no body.

    def on_chunk_header(self) -> None:
        self.between_chunks = False

    def on_chunk_complete(self) -> None:
        self.between_chunks = True

    def on_body(self, data: bytes) -> None:
        if not self.complete:
            self.pieces.append(data)

    def on_message_complete(self) -> None:
        if self.status and not self.complete:
            self.complete, self.reusable = True, self.parser.should_keep_alive()  # The parser knows this only now.
            self.between_chunks = False

    def _parse(self, data: bytes) -> str:
        """Passes data to the parser. Returns a sentence about a fault, or an empty string."""
        try:
            self.parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.between_chunks = False
            return str(error) or type(error).__name__
        self.between_chunks &= data.endswith(b"\r\n")  # Otherwise a part of the next chunk's size has arrived.
        return "unexpected data after the answer" if self.surplus else ""

    def _complete(self, exchange: Exchange, clean: bool) -> None:
        """Frees the connection, then ends the exchange, so that the next exchange can use the connection at once."""
        if clean and self.reusable and not self.transport.get_write_buffer_size():
            self.become_idle()
        else:
            self.close()
        exchange.completed()


def whole_chunk(data: bytes) -> bytes | None:
    """Returns the content of a chunk if the bytes are exactly one chunk (RFC 9112, 7.1), or None, also for the last (empty) chunk."""
    line = CHUNK_SIZE.match(data)
    if line is None or not data.endswith(b"\r\n"):
        return None
    size, start = int(line[1], 16), line.end()
    return data[start:-2] if 0 < size == len(data) - start - 2 else None
