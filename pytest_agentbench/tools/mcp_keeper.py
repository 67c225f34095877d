"""Keeps hold of one MCP server: `python -I -S mcp_keeper.py FD`, the standard library alone, so that it starts at once.

The server speaks over the stdin and stdout that the keeper was started with. The file descriptor is a socket: its first line is a JSON
object that says what to run, and when its other end closes, because the rollout is over or whoever asked is dead, the server is ended with
all that it started. The keeper ends as the server did.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

LEAVE = 1.0  # seconds in which a server whose stdin is closed may leave, before SIGTERM
GRACE = 1.0  # seconds between SIGTERM and SIGKILL

SET_PDEATHSIG, SET_CHILD_SUBREAPER = 1, 36  # of prctl


def prctl() -> Callable[[int, int], int]:
    """What Linux lets a process say of itself; nothing elsewhere."""
    if sys.platform != "linux":
        return lambda *_: 0
    call: Callable[[int, int], int] = ctypes.CDLL(None).prctl
    return call


def end_when_closed(life: socket.socket, server: subprocess.Popen[bytes]) -> None:
    """Waits until nobody needs the server any more, and ends it."""
    with suppress(OSError):
        while life.recv(1):
            pass
    for seconds, number in ((LEAVE, signal.SIGTERM), (GRACE, signal.SIGKILL)):
        with suppress(subprocess.TimeoutExpired):
            server.wait(seconds)
            return
        signal_group(server.pid, number)


def signal_group(leader: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):  # nothing is left of it
        os.killpg(leader, number)


def end_orphans() -> None:
    """Kills what the server left behind, also what went into a session of its own, and waits for it."""
    while children := Path(f"/proc/self/task/{os.getpid()}/children"):
        numbers = children.read_text().split() if children.exists() else []
        for number in numbers:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(int(number), signal.SIGKILL)
        if not numbers:
            return
        for number in numbers:
            with suppress(ChildProcessError):
                os.waitpid(int(number), 0)


def end_as(code: int) -> None:
    """Ends this process with the exit code, or by the signal, of another."""
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with suppress(OSError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def main() -> None:
    life = socket.socket(fileno=int(sys.argv[1]))
    with life.makefile("rb") as lines:
        job = json.loads(lines.readline())
    set_process = prctl()
    set_process(SET_CHILD_SUBREAPER, 1)  # what loses its parent becomes ours, and cannot get away
    try:
        server = subprocess.Popen(
            job["run"],
            cwd=job["cwd"],
            env=job["env"],
            start_new_session=True,
            preexec_fn=lambda: set_process(SET_PDEATHSIG, signal.SIGKILL),  # noqa: PLW1509 - one thread
        )
    except OSError as error:
        sys.exit(f"{error.strerror or error}: {error.filename}")
    nothing = os.open(os.devnull, os.O_RDWR)
    for pipe in (0, 1):  # the server's alone
        os.dup2(nothing, pipe)
    threading.Thread(target=end_when_closed, args=(life, server), daemon=True).start()
    code = server.wait()
    signal_group(server.pid, signal.SIGKILL)
    end_orphans()
    end_as(code)


if __name__ == "__main__":
    main()
