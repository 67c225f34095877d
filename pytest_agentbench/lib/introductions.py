"""Authenticates connections by their first message. Limits its size, its time, and the number of unauthenticated connections."""

from __future__ import annotations

import asyncio
import secrets

from pytest_agentbench.lib import wire
from pytest_agentbench.lib.messages import Hello, Messages, Refused, refusal

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
