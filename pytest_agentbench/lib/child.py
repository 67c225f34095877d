"""The child's side of a process of the session: one JSON line in, one JSON line out, and an end when stdin closes.

It may open as many files and sockets as the system allows, which are checked against what a session needs.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from pytest_agentbench.errors import ConfigError
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


OWN_FILES = 64  # of a process without a rollout: its libraries, logs, pipes
PER_ROLLOUT = 4  # of a rollout in flight, in the tap: to agent and backend, each perhaps a second one that idles
MOST_FILES = 65_536  # enough for anybody; a limit of a thousand millions makes some programs slow


def raise_limit() -> None:
    """Raises the soft limit of this process as far as the hard one lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        with suppress(ValueError, OSError):  # macOS has one more limit, which nobody tells
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def check_limit(concurrency: int) -> None:
    """Raises ConfigError where processes of a session may not open what so many rollouts in flight need."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = OWN_FILES + PER_ROLLOUT * concurrency
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise ConfigError(
            f"{concurrency} rollouts in flight need up to {needed} open files in a process, and {hard} are allowed: raise the hard limit "
            f"(`ulimit -Hn`; LimitNOFILE= of systemd, --ulimit nofile= of Docker), or ask for {max(1, (hard - OWN_FILES) // PER_ROLLOUT)} "
            "with --agentbench-concurrency"
        )
