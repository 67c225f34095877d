"""Connections that have not said who they are: little of their bytes is kept, for a short time, and of few of them."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

from pytest_agentbench.lib import wire

HELLO = 4096  # bytes of a first frame
PATIENCE = 5.0  # seconds until it is there
MOST = 256  # connections that may be silent at the same time; one more, and the oldest is closed


class Introductions:
    """The door of a server whose connections begin with a frame that holds its token."""

    def __init__(self, token: str, patience: float = PATIENCE, most: int = MOST) -> None:
        """`patience` in seconds."""
        self._token, self._patience, self._most = token.encode(), patience, most
        self._silent: dict[asyncio.StreamWriter, None] = {}  # the oldest first

    async def hello(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> dict[str, Any] | None:
        """The first frame of a connection; None for one that does not belong here. Raises EOFError for one that is closed."""
        self._silent[writer] = None
        if len(self._silent) > self._most:
            oldest = next(iter(self._silent))
            del self._silent[oldest]
            oldest.transport.abort()
        timer = asyncio.get_running_loop().call_later(self._patience, self._is_late, writer)
        try:
            hello, _ = await wire.read(reader, HELLO)
        except (ConnectionError, ValueError, RecursionError):  # it is longer, or no JSON
            return None
        finally:
            timer.cancel()
            self._silent.pop(writer, None)
        return hello if self._knows(hello) else None

    def _is_late(self, writer: asyncio.StreamWriter) -> None:
        """What it said while something held up the loop is there, and is read in the next rounds; whoever is silent then is closed."""
        loop = asyncio.get_running_loop()
        loop.call_soon(loop.call_soon, self._close, writer)

    def _close(self, writer: asyncio.StreamWriter) -> None:
        if writer in self._silent:
            writer.transport.abort()

    def _knows(self, hello: Any) -> bool:
        token = hello.get("token") if isinstance(hello, dict) else None
        return isinstance(token, str) and secrets.compare_digest(token.encode(errors="surrogatepass"), self._token)
