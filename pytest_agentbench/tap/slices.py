"""Short turns on the CPU: the tap works for microseconds, and what it has to do should not wait for those who compute for long.

A process may ask Linux (6.12 and later) how long its turns are to be, without any privilege: whoever asks for short ones gets no more of
the CPU, but gets it sooner (sched(7), `sched_runtime` of an ordinary process in sched_setattr(2)).
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys

SLICE_NS = 100_000  # the shortest that Linux grants

_SET_ATTRIBUTES = {"x86_64": 314, "aarch64": 274}  # number of sched_setattr, which the C library does not have
_SCHED_ATTR = struct.Struct("=IIQiIQQQ")  # size, policy, flags, nice, priority, runtime, deadline, period


def take_short_turns() -> None:
    """Older kernels ignore it, and others are not asked; raises OSError where it is forbidden."""
    number = _SET_ATTRIBUTES.get(platform.machine())
    if sys.platform != "linux" or number is None:
        return
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    wanted = _SCHED_ATTR.pack(_SCHED_ATTR.size, os.SCHED_OTHER, 0, nice, 0, SLICE_NS, 0, 0)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(number, 0, wanted, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
