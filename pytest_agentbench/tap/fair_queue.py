"""Work that can wait for its turn, so that no socket waits for it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class FairQueue:
    """Does one thing for each round of the loop, in order; between two of them every socket that has something is read.

    The beginning and the end of a call cost a fraction of a millisecond. When hundreds of calls begin or end at the same moment, and
    all were done at once, the events of other streams would pile up in the kernel and share their stamps.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Callable[[], None]] = deque()
        self._taken = False  # this round has done its thing

    def take(self, work: Callable[[], None]) -> None:
        """Does it now, if it is the first in this round."""
        if self._taken:
            self._waiting.append(work)
        else:
            self._do(work)

    def _do(self, work: Callable[[], None]) -> None:
        self._taken = True
        self._loop.call_soon(self._next)
        try:
            work()
        except Exception as error:  # whoever brought the work has nothing to do with what is wrong with it
            self._loop.call_exception_handler({"message": "a turn failed", "exception": error})

    def _next(self) -> None:
        self._taken = False
        if self._waiting:
            self._do(self._waiting.popleft())
