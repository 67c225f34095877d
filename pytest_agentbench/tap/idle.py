"""Connections to the backend that lie idle, and which of them may carry another call."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

#: Seconds for which one may lie idle. Servers close those that do (uvicorn after five seconds, Node.js too), and a request that meets
#: the close on its way is lost; nobody could then tell it from one that the backend died of.
LONGEST = 2.0

C = TypeVar("C")


class IdleConnections(Generic[C]):
    """The newest is taken first, so that no more are kept than are needed."""

    def __init__(self, is_quiet: Callable[[C], bool], close: Callable[[C], None]) -> None:
        """`is_quiet` tells whether a connection has nothing to read, not even the backend's close; `close` ends a connection."""
        self._is_quiet, self._close = is_quiet, close
        self._waiting: deque[tuple[float, C]] = deque()  # since when, seconds of time.monotonic(); oldest first

    def add(self, connection: C) -> None:
        self._waiting.append((time.monotonic(), connection))

    def remove(self, connection: C) -> None:
        """Forgets one that has ended; one that is not here is no matter."""
        self._waiting = deque(each for each in self._waiting if each[1] is not connection)

    def take(self) -> tuple[C | None, int]:
        """One that the backend still holds, if there is any; and how many it had closed that would have been taken before."""
        self._drop_old()
        gone = 0
        while self._waiting:
            _, connection = self._waiting.pop()
            if self._is_quiet(connection):
                return connection, gone
            gone += 1
            self._close(connection)
        return None, gone

    def close(self) -> None:
        """Ends all of them."""
        for _, connection in self._waiting:
            self._close(connection)

    def _drop_old(self) -> None:
        oldest = time.monotonic() - LONGEST
        while self._waiting and self._waiting[0][0] < oldest:
            self._close(self._waiting.popleft()[1])
