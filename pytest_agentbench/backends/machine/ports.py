"""Ports of this machine: free ones to take, and who has those that are not free."""

from __future__ import annotations

import random
import socket
from pathlib import Path

from pytest_agentbench.errors import BackendError

#: Where free ports are looked for: below those that the kernel gives to outgoing connections, which could take one just before its service
#: starts, and within 15 bits, which is all that Dynamo's DYN_SYSTEM_PORT can hold.
FIRST, LAST = 10_000, 32_767

LISTENS = "0A"  # the state of a listening socket in /proc/net/tcp


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
    pid = listener(port)
    return f"pid {pid} ({_name(Path('/proc', str(pid)))})" if pid else "a process that cannot be seen from here"


def listener(port: int) -> int:
    """Process id of who listens on a port; 0 where nobody does, or nobody who can be seen."""
    inodes = _listening(port)
    found = (entry for entry in Path("/proc").iterdir() if entry.name.isdigit() and _sockets(entry) & inodes) if inodes else iter(())
    return next((int(entry.name) for entry in found), 0)


def _listening(port: int) -> set[str]:
    """Inodes of the sockets that listen on a port."""
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            rows = [line.split() for line in Path(table).read_text().splitlines()[1:]]
        except OSError:
            continue
        found |= {row[9] for row in rows if row[3] == LISTENS and int(row[1].rpartition(":")[2], 16) == port}
    return found


def _sockets(process: Path) -> set[str]:
    """Inodes of a process' sockets; none of a process that is not ours to look at."""
    found = set()
    try:
        for descriptor in (process / "fd").iterdir():
            target = str(descriptor.readlink())
            if target.startswith("socket:["):
                found.add(target[8:-1])
    except OSError:
        pass  # it ended, or belongs to somebody else
    return found


def _name(process: Path) -> str:
    try:
        return (process / "comm").read_text().strip()
    except OSError:
        return "?"
