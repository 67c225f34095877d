"""Ports of this machine: free ones to take, and who has those that are not free."""

from __future__ import annotations

import random
import socket

from pytest_agentbench.errors import BackendError
from pytest_agentbench.lib import process

#: Where free ports are looked for: below those that the kernel gives to outgoing connections, which could take one just before its service
#: starts, and within 15 bits, which is all that Dynamo's DYN_SYSTEM_PORT can hold.
FIRST, LAST = 10_000, 32_767


class Reserved:
    """Free ports of loopback, kept from others until they are let go, just before whoever is meant to have them starts."""

    def __init__(self) -> None:
        self._held: dict[int, socket.socket] = {}

    def take(self) -> int:
        for port in random.sample(range(FIRST, LAST + 1), LAST + 1 - FIRST):
            held = socket.socket()
            try:
                held.bind(("127.0.0.1", port))
            except OSError:  # somebody has it
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
    """A free port of loopback, ours until the socket is closed, on which processes of this user with SO_REUSEPORT can listen meanwhile."""
    sock = socket.socket()
    if hasattr(socket, "SO_REUSEPORT"):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sock.bind(("127.0.0.1", 0))
    return sock


def is_free(port: int) -> bool:
    """Whether nobody listens on a port of this machine, whatever the address."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # what only waits for its last packets is free
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True


def holder(port: int) -> str:
    """Who listens on a port: `pid 123 (python)`; a guess where the system does not tell."""
    pid = process.listener(port)
    return f"pid {pid} ({process.name(pid)})" if pid else "a process that cannot be seen from here"
