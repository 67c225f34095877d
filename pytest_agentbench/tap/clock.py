"""Kernel receive timestamps, converted to the monotonic clock.

The kernel timestamps packets with CLOCK_REALTIME, which can be slewed and stepped. All other times here are CLOCK_MONOTONIC. Both
clocks are read at every read of a socket, so drift is followed and a step is noticed at once.
"""

from __future__ import annotations

import socket
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

#: SO_TIMESTAMPNS of Linux, which Python's `socket` does not define. Received packets then carry a `struct timespec`.
SO_TIMESTAMPNS = 35
TIMESPEC = struct.Struct("@qq")
ANCILLARY = socket.CMSG_SPACE(TIMESPEC.size)

#: Nanoseconds that the measured offset may be off before it is measured again, and its maximum age in nanoseconds.
APART, HOLDS = 20_000, 1_000_000_000

#: Maximum rate at which the realtime clock is slewed, as a fraction (adjtimex(2): 500 ppm). A greater change is a step.
SLEW = 500e-6

#: Nanoseconds that a timestamp may be later than the read of its bytes because of conversion errors alone.
SLACK = 50_000

PAIRS = 9  # pairs of clock reads of which the closest counts


class KernelClock:
    """Converts kernel timestamps to monotonic nanoseconds."""

    def __init__(self) -> None:
        self.offset = measured_offset()  # realtime - monotonic, nanoseconds
        self.paired_ns = time.monotonic_ns()
        self.steps = 0  # number of steps of the realtime clock that were noticed

    def lag(self, ancillary: list[tuple[int, int, bytes]], read_ns: int) -> int | None:
        """Returns the nanoseconds from the kernel timestamp to the read at `read_ns`, or None without a reliable timestamp."""
        apart = time.time_ns() - read_ns - self.offset
        if not (0 <= apart <= APART and read_ns - self.paired_ns < HOLDS) and self._stepped():
            return None  # The packet may have been timestamped before or after the step.
        for _, kind, data in ancillary:
            if kind == SO_TIMESTAMPNS:
                seconds, nanoseconds = TIMESPEC.unpack_from(data)
                lag: int = read_ns + self.offset - seconds * 1_000_000_000 - nanoseconds
                return lag if lag >= 0 else 0 if lag > -SLACK else None
        return None

    def _stepped(self) -> bool:
        """Measures the offset of the clocks again. Returns whether CLOCK_REALTIME was stepped: it changed more than slewing explains."""
        offset, now = measured_offset(), time.monotonic_ns()
        jumped = abs(offset - self.offset) > APART + SLEW * (now - self.paired_ns)
        self.offset, self.paired_ns = offset, now
        self.steps += jumped
        return jumped


def measured_offset() -> int:
    """Returns CLOCK_REALTIME - CLOCK_MONOTONIC in nanoseconds, from the closest of a few pairs of reads."""

    def pair() -> tuple[int, int]:
        before, real, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        return after - before, real - (before + after) // 2

    return min(pair() for _ in range(PAIRS))[1]


@contextmanager
def keep_timestamping() -> Iterator[None]:
    """Keeps kernel timestamps enabled in a `with` block. The kernel stops them if no socket requests them, and is slow to start again."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as holder:
        enable_timestamps(holder)
        yield


def enable_timestamps(sock: socket.socket) -> bool:
    """Enables kernel timestamps for received packets of a socket. Returns whether they are available."""
    if sys.platform != "linux":
        return False
    try:
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    except OSError:
        return False
    return True
