"""Short CPU time slices."""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import sys

import pytest

from pytest_agentbench.tap import cpu_turns
from pytest_agentbench.tap.protocol import TapListening
from tests.tap.conftest import TOKEN, StartTap

GET_ATTRIBUTES = {"x86_64": 315, "aarch64": 275}  # system call number of sched_getattr
ATTRIBUTES = struct.Struct("=IIQiIQQQ")


def attributes(pid: int) -> tuple[int, ...]:
    """Returns (size, policy, flags, nice, priority, runtime, deadline, period) of a process."""
    number = GET_ATTRIBUTES.get(os.uname().machine)
    if sys.platform != "linux" or number is None:
        pytest.skip(f"nobody asks for short turns on {sys.platform} {os.uname().machine}")
    found = ctypes.create_string_buffer(ATTRIBUTES.size)
    libc = ctypes.CDLL(None, use_errno=True)
    assert 0 == libc.syscall(number, pid, found, ATTRIBUTES.size, 0), os.strerror(ctypes.get_errno())
    return ATTRIBUTES.unpack(found.raw)


async def test_the_tap_takes_short_turns(start_tap: StartTap) -> None:
    """The tap is scheduled like other processes, except for the length of its time slices."""
    child = start_tap(token=TOKEN)
    child.ready(TapListening)
    ours, its = attributes(os.getpid()), attributes(child.process.pid)
    if not ours[5]:
        pytest.skip("this kernel knows no length of turns: Linux 6.12 and later do")

    assert its[5] == cpu_turns.SLICE_NS
    assert its[1:5] == ours[1:5]


def test_a_lower_priority_stays() -> None:
    """A tap that is started with `nice` keeps its priority."""
    asking = "from pytest_agentbench.tap import cpu_turns; cpu_turns.request_short_slices(); import os; print(os.nice(0))"
    ran = subprocess.run(["nice", "-n", "7", sys.executable, "-c", asking], capture_output=True, text=True, check=True)

    assert ran.stdout == f"{min(os.nice(0) + 7, 19)}\n"
