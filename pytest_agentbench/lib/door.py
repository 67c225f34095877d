"""A door: the listening socket of a server that may be open to a network. It lets clients with the server's token in.

All that strangers can occupy is bounded: connections that have not sent their first message (`introductions`), TLS handshakes, their time,
and the size of the first message.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress

from pytest_agentbench.lib.introductions import MOST_SILENT, PATIENCE, Introductions
from pytest_agentbench.lib.messages import Hello

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
