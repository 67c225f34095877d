"""Turns on the CPU: work that waits for its turn, so that no socket waits for it, and short turns of the whole process.

The tap works for microseconds, and what it has to do should not wait for those who compute for long. A process may ask Linux (6.12 and
later) how long its turns are to be, without any privilege: whoever asks for short ones gets no more of the CPU, but gets it sooner
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
    """Does one thing for each round of the loop, in order; between two of them every socket that has something is read.

    The beginning and the end of a call cost a fraction of a millisecond. When hundreds of calls begin or end at the same moment, and
    all were done at once, the events of other streams would pile up in the kernel and share their stamps.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_done = False  # this round has done its thing

    def take(self, work: Callable[[], None]) -> None:
        """Does it now, if it is the first in this round."""
        if self._is_done:
            self._waiting.append(work)
        else:
            self._do(work)

    def _do(self, work: Callable[[], None]) -> None:
        self._is_done = True
        self._loop.call_soon(self._next)
        try:
            work()
        except Exception as error:  # whoever brought the work has nothing to do with what is wrong with it
            self._loop.call_exception_handler({"message": "a turn failed", "exception": error})

    def _next(self) -> None:
        self._is_done = False
        if self._waiting:
            self._do(self._waiting.popleft())


SLICE_NS = 100_000  # the shortest that Linux grants

_SET_ATTRIBUTES = {"x86_64": 314, "aarch64": 274}  # number of sched_setattr, which the C library does not have
_SCHED_ATTR = struct.Struct("=IIQiIQQQ")  # size, policy, flags, nice, priority, runtime, deadline, period


def request_short_slices() -> None:
    """Older kernels ignore it, and others are not asked; raises OSError where it is forbidden."""
    number = _SET_ATTRIBUTES.get(platform.machine())
    if sys.platform != "linux" or number is None:
        return
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    attributes = _SCHED_ATTR.pack(_SCHED_ATTR.size, os.SCHED_OTHER, 0, nice, 0, SLICE_NS, 0, 0)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(number, 0, attributes, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
