"""The kernel's receive stamps on the monotonic clock.

The kernel stamps packets with CLOCK_REALTIME, which is slewed and stepped; everything else here is CLOCK_MONOTONIC. Both are
read at every read of a socket, so that a drift is followed and a step is seen at once.
"""

from __future__ import annotations

import socket
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

#: SO_TIMESTAMPNS of Linux, which Python's `socket` does not name; a received packet then comes with a `struct timespec`.
SO_TIMESTAMPNS = 35
TIMESPEC = struct.Struct("@qq")
ANCILLARY = socket.CMSG_SPACE(TIMESPEC.size)

#: Nanoseconds that the two clocks may seem apart before they are paired anew, and how long a pair holds at most.
APART, HOLDS = 20_000, 1_000_000_000

#: The most that the realtime clock is slewed by, in parts of one (adjtimex(2): 500 ppm). What goes beyond it is a step.
SLEW = 500e-6

#: Nanoseconds that a stamp may lie behind the read of its bytes by errors of the mapping alone.
SLACK = 50_000

PAIRS = 9


class KernelClock:
    """Maps stamps of the kernel to monotonic nanoseconds."""

    def __init__(self) -> None:
        self.offset = measured_offset()  # realtime - monotonic, nanoseconds
        self.paired_ns = time.monotonic_ns()
        self.steps = 0  # how often the realtime clock jumped

    def lag(self, ancillary: list[tuple[int, int, bytes]], read_ns: int) -> int | None:
        """Nanoseconds from the kernel's stamp of the bytes to `read_ns`, when they were read; None where there is no stamp to trust."""
        apart = time.time_ns() - read_ns - self.offset
        if not (0 <= apart <= APART and read_ns - self.paired_ns < HOLDS) and self._stepped():
            return None  # it may have been stamped before the step or after it
        for _, kind, data in ancillary:
            if kind == SO_TIMESTAMPNS:
                seconds, nanoseconds = TIMESPEC.unpack_from(data)
                lag: int = read_ns + self.offset - seconds * 1_000_000_000 - nanoseconds
                return lag if lag >= 0 else 0 if lag > -SLACK else None
        return None

    def _stepped(self) -> bool:
        """Pairs the clocks anew; whether they are further apart than slewing explains."""
        offset, now = measured_offset(), time.monotonic_ns()
        jumped = abs(offset - self.offset) > APART + SLEW * (now - self.paired_ns)
        self.offset, self.paired_ns = offset, now
        self.steps += jumped
        return jumped


def measured_offset() -> int:
    """CLOCK_REALTIME - CLOCK_MONOTONIC in nanoseconds, from the closest of a few pairs of reads."""

    def pair() -> tuple[int, int]:
        before, real, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        return after - before, real - (before + after) // 2

    return min(pair() for _ in range(PAIRS))[1]


@contextmanager
def keep_timestamping() -> Iterator[None]:
    """Keeps the kernel stamping: while no socket at all wants stamps it takes none, and it needs a moment to begin again."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as holder:
        enable_timestamps(holder)
        yield


def enable_timestamps(sock: socket.socket) -> bool:
    """Asks the kernel to stamp what comes on a socket; whether it will."""
    if sys.platform != "linux":
        return False
    try:
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    except OSError:
        return False
    return True
