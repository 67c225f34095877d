"""The child's side of a process of the session: one JSON line in, one JSON line out, and an end when stdin closes."""

from __future__ import annotations

import ctypes
import json
import os
import sys
from typing import TYPE_CHECKING, Any, TypeVar

from pytest_agentbench.lib import codec

if TYPE_CHECKING:
    import asyncio
    import signal

LOG = "AGENTBENCH_LOG"  # a variable of a process that we start: the file that its stderr goes to

PR_SET_PDEATHSIG = 1  # of prctl(2)


Config = TypeVar("Config")


def read_line() -> Any:
    """Reads the first line of stdin, which is JSON that says what the process is to do; raises ValueError for anything else."""
    return json.loads(sys.stdin.buffer.readline())


def read_config(kind: type[Config]) -> Config:
    """Returns the message that `read_line` reads; raises ValueError for anything else."""
    return codec.received(kind, read_line())


def serving(message: object) -> None:
    """Writes the first line of stdout, which says that this process serves. What is printed later goes to the log."""
    print(json.dumps(codec.plain(message)), flush=True)  # noqa: T201 - stdout is the line to the controller
    os.dup2(2, 1)


def end_with_parent(parent: int, number: signal.Signals) -> None:
    """Has the kernel send this process a signal when its parent ends, whatever this one is doing then."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(1)


def end_with_stdin(loop: asyncio.AbstractEventLoop, end: asyncio.Event) -> None:
    """Sets `end` when stdin closes: the controller is done, or dead."""

    def readable() -> None:
        if not os.read(sys.stdin.fileno(), 4096):
            loop.remove_reader(sys.stdin.fileno())
            end.set()

    loop.add_reader(sys.stdin.fileno(), readable)
