"""Where a host is: the name service is asked once for all connections that are opened at the same time."""

from __future__ import annotations

import asyncio
import socket
from typing import NamedTuple, cast

from aiohappyeyeballs import AddrInfoType

HOLDS = 30.0  # seconds for which an answer is taken for true


class Lookup(NamedTuple):
    """What the name service says, or is being asked."""

    answer: asyncio.Task[list[AddrInfoType]]
    until: float  # time of the loop


class HostAddresses:
    """Of one host and port."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._question: Lookup | None = None

    async def get(self) -> list[AddrInfoType]:
        """Raises OSError or ValueError when there are none."""
        loop = asyncio.get_running_loop()
        if self._question is None or loop.time() > self._question.until:
            self._question = Lookup(loop.create_task(self._ask()), loop.time() + HOLDS)
        try:
            return await asyncio.shield(self._question.answer)
        except (OSError, ValueError):
            self._question = None
            raise

    async def _ask(self) -> list[AddrInfoType]:
        found = await asyncio.get_running_loop().getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        return cast("list[AddrInfoType]", found)  # the same, but for addresses of families that TCP does not have
