"""An event loop in another thread that a test blocks."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType

Block = Callable[[], None]


@contextmanager
def blocked(run: Callable[[Block], Coroutine[object, object, None]]) -> Iterator[Callable[[], FrameType]]:
    """Runs a coroutine function in another thread until it calls `block`. Yields a function that returns the thread's stack."""
    reached, go_on = threading.Event(), threading.Event()

    def block() -> None:
        reached.set() or go_on.wait()  # type: ignore[func-returns-value]  # one line, at which tests look

    thread = threading.Thread(target=lambda: asyncio.run(run(block)))
    thread.start()
    reached.wait()
    try:
        yield lambda: sys._current_frames()[thread.ident or 0]
    finally:
        go_on.set()
        thread.join()
