"""A backend that takes so many requests a minute: calls go one by one, evenly spaced, in the order in which they came."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable


class Pace:
    """Holds calls back. Evenly spaced ones keep every kind of limit, also one that looks at a second or at any sixty of them."""

    def __init__(self, requests_per_minute: float) -> None:
        """Raises ValueError for what is no rate."""
        if not 0 < requests_per_minute < math.inf:
            raise ValueError(f"{requests_per_minute} is no number of requests a minute")
        self._gap = 60 / requests_per_minute
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[Callable[[], bool], Callable[[int], None], int]] = deque()
        self._free_at = self._loop.time()  # when the next call may go

    def take(self, is_over: Callable[[], bool], send: Callable[[int], None]) -> None:
        """Calls `send` with the nanoseconds that the call waited, unless `is_over` says by then that its answer is no longer wanted."""
        self._waiting.append((is_over, send, time.monotonic_ns()))
        if len(self._waiting) == 1:
            self._go()

    def _go(self) -> None:
        """Sends the first that waits, if it is time, and comes back for the next one."""
        while self._waiting and self._waiting[0][0]():  # its agent left, or its rollout ended
            self._waiting.popleft()
        if not self._waiting:
            return
        early = self._free_at - self._loop.time()
        if early <= 0:
            _, send, since_ns = self._waiting.popleft()
            self._free_at, early = self._loop.time() + self._gap, self._gap
            send(time.monotonic_ns() - since_ns)
        if self._waiting:
            self._loop.call_later(early, self._go)
