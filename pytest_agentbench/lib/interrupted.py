"""A time limit for code that the main thread waits for, where there is no event loop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

AGAIN = 1.0  # seconds until code that goes on after its interruption is interrupted again


class TimeIsOver(BaseException):
    """Ends code whose time is over. Its base keeps an `except Exception` of that code from taking it."""


@contextmanager
def interrupted_after(seconds: float) -> Iterator[None]:
    """Raises TimeIsOver in code that runs longer than `seconds`; only the main thread can be interrupted, others have no limit."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, _interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN)
    try:
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    finally:  # The time may be over while the timer is stopped above.
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _interrupt(signum: int, frame: FrameType | None) -> NoReturn:
    raise TimeIsOver
