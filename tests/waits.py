"""Waiting in tests: for a condition, and not longer than it should take on a busy machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_for(condition: Callable[[], T | None], what: str, seconds: float = 30) -> T:
    """Returns the first true value of `condition`. Fails with `what` if there is none in time."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"after {seconds:g} s still waiting for {what}"
        time.sleep(0.02)
    return found
