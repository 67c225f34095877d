"""Sharing the CPU: a queue that spreads work over rounds of the event loop, and short time slices for the process.

The tap needs the CPU for microseconds at a time, and should not wait for processes that compute for long. On Linux 6.12 and later, a
process can set the length of its time slices without privileges. A process with short slices gets no more CPU time, but gets it sooner
(sched(7), `sched_runtime` of an ordinary process in sched_setattr(2)).
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import platform
import struct
import sys
from collections import deque
from collections.abc import Callable


class FairQueue:
    """Runs one piece of work in each round of the event loop, in order. Between two pieces, every socket with data is read.

    The start and the end of a call take a fraction of a millisecond each. If hundreds of them were handled at once, the events of other
    streams would queue in the kernel and be read together, so that they would share a timestamp.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_done = False  # whether this round has run its piece of work

    def take(self, work: Callable[[], None]) -> None:
        """Runs `work` now if it is the first piece in this round, otherwise in a later round."""
        if self._is_done:
            self._waiting.append(work)
        else:
            self._do(work)

    def _do(self, work: Callable[[], None]) -> None:
        self._is_done = True
        self._loop.call_soon(self._next)
        try:
            work()
        except Exception as error:  # The caller of `take` is not responsible for an error in the work.
            self._loop.call_exception_handler({"message": "queued work failed", "exception": error})

    def _next(self) -> None:
        self._is_done = False
        if self._waiting:
            self._do(self._waiting.popleft())


SLICE_NS = 100_000  # the shortest slice that Linux grants

_SET_ATTRIBUTES = {"x86_64": 314, "aarch64": 274}  # system call number of sched_setattr, which the C library does not have
_SCHED_ATTR = struct.Struct("=IIQiIQQQ")  # size, policy, flags, nice, priority, runtime, deadline, period


def request_short_slices() -> None:
    """Requests short time slices for this process. Raises OSError if that is forbidden.

    Older kernels ignore the request. On other systems and processor types, nothing happens.
    """
    number = _SET_ATTRIBUTES.get(platform.machine())
    if sys.platform != "linux" or number is None:
        return
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    attributes = _SCHED_ATTR.pack(_SCHED_ATTR.size, os.SCHED_OTHER, 0, nice, 0, SLICE_NS, 0, 0)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(number, 0, attributes, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
