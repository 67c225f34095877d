"""Decides when a connection counts as lost because nothing has come from the other side."""

from __future__ import annotations

import os
import time

PERIOD = 1.0  # seconds between two calls of `is_too_long`
LATE = 1.0  # seconds by which a call may be late without an effect

#: Seconds without a message after which a side gives up the connection. 10 s were a false alarm on a busy machine.
SILENCE = 25.0

VARIABLE = "AGENTBENCH_NODES_SILENCE"  # environment variable of a session with another limit in seconds, for tests


def silence_limit() -> float:
    """Returns the limit of a session in seconds. Its node workers get it with `Welcome`."""
    return float(os.environ.get(VARIABLE, SILENCE))


class Silence:
    """The time since the last message of the other side, as one side of a connection counts it.

    `is_too_long` has to be called every PERIOD seconds. If a call comes late, this process or its machine was stopped or too busy, which
    says nothing about the other side. So the count then begins anew, but only once between two messages. Times are those of
    `time.monotonic()` in seconds.
    """

    def __init__(self, limit: float = SILENCE) -> None:
        self.limit = limit
        self._heard = self._called = time.monotonic()
        self._has_begun_anew = False

    def end(self) -> None:
        """Notes that a message has come."""
        self._heard = time.monotonic()
        self._has_begun_anew = False

    def is_too_long(self) -> bool:
        """Returns whether the other side has been silent for longer than the limit."""
        now = time.monotonic()
        if now - self._called > PERIOD + LATE and not self._has_begun_anew:
            self._heard, self._has_begun_anew = now, True
        self._called = now
        return now - self._heard > self.limit

    @property
    def seconds(self) -> float:
        """The seconds since the last message, or since the count began anew."""
        return time.monotonic() - self._heard
