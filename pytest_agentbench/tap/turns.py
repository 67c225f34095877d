"""Work that can wait for its turn, so that no socket waits for it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class Turns:
    """Does one thing for each round of the loop, in order; between two of them every socket that has something is read.

    The beginning and the end of a call cost a fraction of a millisecond. When hundreds of calls begin or end at the same moment, and
    all were done at once, the events of other streams would pile up in the kernel and share their stamps.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Callable[[], None]] = deque()

    def take(self, work: Callable[[], None]) -> None:
        self._waiting.append(work)
        if len(self._waiting) == 1:
            self._loop.call_soon(self._next)

    def _next(self) -> None:
        work = self._waiting[0]
        try:
            work()
        finally:
            self._waiting.popleft()
            if self._waiting:
                self._loop.call_soon(self._next)
