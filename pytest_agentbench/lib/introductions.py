"""Connections that have not said who they are: little of their bytes is kept, for a short time, and of few of them."""

from __future__ import annotations

import asyncio
import secrets

from pytest_agentbench.lib import wire
from pytest_agentbench.lib.messages import Hello, Messages, Refused, refusal

HELLO = 4096  # bytes of a first frame
PATIENCE = 5.0  # seconds until it is there
HELLOS: Messages[Hello] = Messages(Hello)
MOST_SILENT = 256  # connections that may be silent at the same time; one more, and the oldest is closed


class Introductions:
    """The door of a server whose connections begin with a frame that holds its token."""

    def __init__(self, token: str, patience: float = PATIENCE, most: int = MOST_SILENT) -> None:
        """`patience` in seconds."""
        self._token, self._patience, self._most = token.encode(), patience, most
        self._silent: dict[asyncio.StreamWriter, None] = {}  # the oldest first

    async def hello(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Hello | None:
        """Returns the first message of a connection, and None for one that does not belong here; one of another version is told so.

        Raises EOFError for a connection that is closed.
        """
        self._silent[writer] = None
        if len(self._silent) > self._most:
            oldest = next(iter(self._silent))
            del self._silent[oldest]
            oldest.transport.abort()
        timer = asyncio.get_running_loop().call_later(self._patience, self._is_late, writer)
        try:
            header, _ = await wire.read(reader, HELLO)
        except (ConnectionError, ValueError):  # it is longer, or no JSON
            return None
        finally:
            timer.cancel()
            self._silent.pop(writer, None)
        match header:
            case ["Hello", {"token": str(token), "protocol": protocol}] if self._is_valid_token(token):
                pass
            case _:
                return None
        if reason := refusal(protocol):
            writer.write(wire.pack(Refused(reason)))
            return None
        try:
            return HELLOS.read(header)
        except ValueError:
            return None

    def _is_late(self, writer: asyncio.StreamWriter) -> None:
        """What it said while something held up the loop is there, and is read in the next rounds; whoever is silent then is closed."""
        loop = asyncio.get_running_loop()
        loop.call_soon(loop.call_soon, self._close, writer)

    def _close(self, writer: asyncio.StreamWriter) -> None:
        if writer in self._silent:
            writer.transport.abort()

    def _is_valid_token(self, token: str) -> bool:
        return secrets.compare_digest(token.encode(errors="surrogatepass"), self._token)
