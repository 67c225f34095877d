"""SIGTERM to a command that has started processes."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

TERMINATED = 128 + signal.SIGTERM  # as a shell has it for a program that SIGTERM ends


@contextmanager
def tidy_termination() -> Iterator[None]:
    """SIGTERM ends the block as an exception does, so that what it has started and written does not outlive it."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
