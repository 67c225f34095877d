"""`python -m pytest_agentbench.rollouts.pool`: started by the controller, which passes a listening socket and the suites."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time

from pytest_agentbench.lib import capture
from pytest_agentbench.lib.child import read_config
from pytest_agentbench.lib.file_limits import raise_limit
from pytest_agentbench.lib.threads import daemon
from pytest_agentbench.rollouts.pool.server import serve

GRACE = 3.0  # seconds between the end of stdin and the end of a pool that an agent blocks


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the controller's to handle
    raise_limit()
    config = read_config()
    capture.install()
    daemon(_leave_with_stdin, name="leave")
    asyncio.run(serve(config, socket.socket(fileno=config["listener"])))


def _leave_with_stdin() -> None:
    """The loop sees the end of stdin too, but not while an agent blocks it, nor does it leave before the agents' threads do."""
    while os.read(sys.stdin.fileno(), 4096):
        pass
    time.sleep(GRACE)
    os._exit(0)


if __name__ == "__main__":
    main()
