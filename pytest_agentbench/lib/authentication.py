"""Authenticates connections by their first message, and lets clients with the server's token in.

A door is the listening socket of a server that may be open to a network. All that strangers can occupy is bounded: connections that have
not sent their first message, TLS handshakes, their time, and the size of the first message.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress

from pytest_agentbench.lib import wire
from pytest_agentbench.lib.wire import Hello, Messages, Refused, refusal

HELLO = 4096  # bytes of a first frame at most
PATIENCE = 5.0  # seconds until the first frame has to be complete
HELLOS: Messages[Hello] = Messages(Hello)
MOST_SILENT = 256  # connections that have not sent their first frame; if there are more, the oldest is closed


class Introductions:
    """Authenticates the connections of one server: the first frame of each must contain the server's token."""

    def __init__(self, token: str, patience: float = PATIENCE, most: int = MOST_SILENT) -> None:
        """`patience` is the number of seconds until the first frame must be complete, `most` the limit on connections without one."""
        self._token, self._patience, self._most = token.encode(), patience, most
        self._silent: dict[asyncio.StreamWriter, None] = {}  # connections without a first frame, the oldest first

    async def hello(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Hello | None:
        """Returns the first message of a connection, or None if the connection must be closed.

        A connection with the right token but another protocol version gets a `Refused` first. Raises EOFError if the connection is closed.
        """
        self._silent[writer] = None
        if len(self._silent) > self._most:
            oldest = next(iter(self._silent))
            del self._silent[oldest]
            oldest.transport.abort()
        timer = asyncio.get_running_loop().call_later(self._patience, self._is_late, writer)
        try:
            header, _ = await wire.read(reader, HELLO)
        except (ConnectionError, ValueError):  # The frame is too long, or is not JSON.
            writer.transport.abort()
            return None
        finally:
            timer.cancel()
            self._silent.pop(writer, None)
        match header:
            case ["Hello", {"token": str(token), "protocol": protocol}] if self._is_valid_token(token):
                pass
            case _:
                writer.transport.abort()  # Otherwise a TLS connection would stay until the client has closed it, too.
                return None
        if reason := refusal(protocol):
            writer.write(wire.pack(Refused(reason)))
            return None
        try:
            return HELLOS.read(header)
        except ValueError:
            return None

    def _is_late(self, writer: asyncio.StreamWriter) -> None:
        """Closes a connection if its first frame has not arrived after two more rounds of the event loop. Called when its time is over.

        In these rounds, the loop reads data that arrived while it was blocked.
        """
        loop = asyncio.get_running_loop()
        loop.call_soon(loop.call_soon, self._close, writer)

    def _close(self, writer: asyncio.StreamWriter) -> None:
        if writer in self._silent:
            writer.transport.abort()

    def _is_valid_token(self, token: str) -> bool:
        return secrets.compare_digest(token.encode(errors="surrogatepass"), self._token)


PAUSE = 0.5  # seconds until the next connection is accepted if this process has no free descriptor

#: Called with each client that has the token and the role. The connection is closed when it returns.
ServeClient = Callable[[Hello, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Door:
    """Accepts connections from a listening socket, and calls a handler for each client with the right token and role.

    All other connections are closed without an answer, except those of another protocol version (`Introductions.hello`).
    """

    def __init__(
        self,
        token: str,
        role: str,
        handle: ServeClient,
        tls: ssl.SSLContext | None = None,
        patience: float = PATIENCE,
        most: int = MOST_SILENT,
    ) -> None:
        """`patience` is the number of seconds for a TLS handshake, and again for the first message; `most` is the limit for each."""
        self._introductions, self._role, self._handle = Introductions(token, patience, most), role, handle
        self._tls, self._patience, self._most = tls, patience, most
        self._handshakes: dict[asyncio.Task[None], None] = {}  # tasks whose TLS handshake is not complete, the oldest first
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, listener: socket.socket) -> None:
        """Accepts connections until it is cancelled. Then it closes them all, and the listener."""
        listener.setblocking(False)
        loop = asyncio.get_running_loop()
        try:
            while True:
                try:
                    connection, _ = await loop.sock_accept(listener)
                except ConnectionError:  # The client has closed it already.
                    continue
                except OSError:  # no descriptor, no memory
                    await asyncio.sleep(PAUSE)
                    continue
                self._start(connection)
                await asyncio.sleep(0)  # `sock_accept` does not let other tasks run while connections wait.
        finally:
            listener.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start(self, connection: socket.socket) -> None:
        task = asyncio.create_task(self._admit(connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda task: connection.close() if task.cancelled() else None)  # It may not have begun.
        if self._tls is not None:
            self._handshakes[task] = None
            task.add_done_callback(lambda task: self._handshakes.pop(task, None))
            if len(self._handshakes) > self._most:
                oldest = next(iter(self._handshakes))
                del self._handshakes[oldest]
                oldest.cancel()

    async def _admit(self, connection: socket.socket) -> None:
        try:
            reader, writer = await self._streams(connection)
        except OSError:  # also of TLS, and a time limit
            return
        finally:
            if task := asyncio.current_task():
                self._handshakes.pop(task, None)
        try:
            with suppress(EOFError, ConnectionError):
                hello = await self._introductions.hello(reader, writer)
                if hello is not None and hello.role == self._role:
                    await self._handle(hello, reader, writer)
        except asyncio.CancelledError:
            writer.transport.abort()
            raise
        finally:
            writer.close()

    async def _streams(self, connection: socket.socket) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Returns the streams of a connection, after the TLS handshake if there is one."""
        connection.setblocking(False)
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        limits = {"ssl_handshake_timeout": self._patience, "ssl_shutdown_timeout": self._patience} if self._tls is not None else {}
        try:
            transport, _ = await loop.connect_accepted_socket(lambda: protocol, connection, ssl=self._tls, **limits)
        except BaseException:
            connection.close()
            raise
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)
