"""Supervises one MCP server, from its start to the end of all that it started.

The server speaks over the stdin and stdout that the supervisor was started with. Its argument is the file descriptor of a socket, whose
first line is a JSON object that says what to run. When the socket's other end closes, because the rollout is over or whoever asked is
dead, the server is ended with all that it started. The supervisor ends as the server did.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress

from pytest_agentbench.lib.supervisor import end_orphans, signal_group, start_program

STDIN_GRACE = 1.0  # seconds in which a server whose stdin is closed may leave, before SIGTERM
GRACE = 1.0  # seconds between SIGTERM and SIGKILL


def end_when_closed(life: socket.socket, server: subprocess.Popen[bytes]) -> None:
    """Waits until nobody needs the server any more, and ends it."""
    with suppress(OSError):
        while life.recv(1):
            pass
    for seconds, number in ((STDIN_GRACE, signal.SIGTERM), (GRACE, signal.SIGKILL)):
        with suppress(subprocess.TimeoutExpired):
            server.wait(seconds)
            return
        signal_group(server.pid, number)


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
    try:
        server = start_program(job["run"], job["cwd"], job["env"])
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
