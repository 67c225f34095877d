"""The ports of this machine: reserving free ports, and finding the process that uses a port."""

from __future__ import annotations

import random
import socket

from pytest_agentbench.errors import BackendError
from pytest_agentbench.lib import process

#: Range of the reserved ports. It is below the ports of outgoing connections, one of which could take a port just before its service
#: starts, and below 2**15, because Dynamo's DYN_SYSTEM_PORT has 15 bits.
FIRST, LAST = 10_000, 32_767


class Reserved:
    """Reserves free ports of 127.0.0.1 for services that start later.

    `take` binds a port, so that no other program gets it. `let_go` frees the port, and is called just before its service starts.
    """

    def __init__(self) -> None:
        self._held: dict[int, socket.socket] = {}

    def take(self) -> int:
        for port in random.sample(range(FIRST, LAST + 1), LAST + 1 - FIRST):
            held = socket.socket()
            try:
                held.bind(("127.0.0.1", port))
            except OSError:  # The port is in use.
                held.close()
                continue
            self._held[port] = held
            return port
        raise BackendError(f"no port between {FIRST} and {LAST} is free")

    def let_go(self, port: int) -> None:
        if port in self._held:
            self._held.pop(port).close()

    def close(self) -> None:
        for port in list(self._held):
            self.let_go(port)


def shared_port() -> socket.socket:
    """Returns a socket that is bound to a free port of 127.0.0.1.

    Until the socket is closed, only processes of this user that set SO_REUSEPORT can listen on the port.
    """
    sock = socket.socket()
    if hasattr(socket, "SO_REUSEPORT"):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sock.bind(("127.0.0.1", 0))
    return sock


def is_free(port: int) -> bool:
    """Returns whether no process listens on a port of this machine, on any address."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # A port with connections in TIME_WAIT counts as free.
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True


def holder(port: int) -> str:
    """Returns a description of the process that listens on a port, such as `pid 123 (python)`, or a phrase if the process is unknown."""
    pid = process.listener(port)
    return f"pid {pid} ({process.name(pid)})" if pid else "a process that cannot be seen from here"
