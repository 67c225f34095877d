"""The supervisor of one MCP server, which ends the server with all processes that it started.

The server inherits the supervisor's stdin and stdout. The supervisor's argument is the file descriptor of a socket, whose first line is a
JSON object with the command to run. When the other end of the socket closes, because the rollout is over or the parent process is dead,
the server and all its processes are ended. The supervisor exits with the exit code or signal of the server.
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

STDIN_GRACE = 1.0  # seconds between the end of a server's stdin and SIGTERM
GRACE = 1.0  # seconds between SIGTERM and SIGKILL


def end_when_closed(life: socket.socket, server: subprocess.Popen[bytes]) -> None:
    """Waits until the socket closes, then ends the server."""
    with suppress(OSError):
        while life.recv(1):
            pass
    for seconds, number in ((STDIN_GRACE, signal.SIGTERM), (GRACE, signal.SIGKILL)):
        with suppress(subprocess.TimeoutExpired):
            server.wait(seconds)
            return
        signal_group(server.pid, number)


def end_as(code: int) -> None:
    """Ends this process with the exit code of another process, or by the same signal."""
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with suppress(OSError):  # SIGKILL has no handler.
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
    for pipe in (0, 1):  # Only the server may keep these pipes open.
        os.dup2(nothing, pipe)
    threading.Thread(target=end_when_closed, args=(life, server), daemon=True).start()
    code = server.wait()
    signal_group(server.pid, signal.SIGKILL)
    end_orphans()
    end_as(code)
