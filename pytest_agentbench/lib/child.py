"""The child's side of a process of the session: one JSON line in, one JSON line out, and an end when stdin closes."""

from __future__ import annotations

import ctypes
import json
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio
    import signal

LOG = "AGENTBENCH_LOG"  # a variable of a process that we start: the file that its stderr goes to

PR_SET_PDEATHSIG = 1  # of prctl(2)


def read_config() -> dict[str, Any]:
    """The line that the controller wrote first."""
    config: dict[str, Any] = json.loads(sys.stdin.buffer.readline())
    return config


def serving(**facts: Any) -> None:
    """Tells the controller that this process serves. Nobody reads stdout after that line: what is printed later goes to the log."""
    print(json.dumps(facts), flush=True)  # noqa: T201 - stdout is the line to the controller
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
