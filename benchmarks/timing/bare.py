"""`python -m benchmarks.timing.bare`: a minimal relay, whose cost is the lower bound for the tap.

It forwards bytes without parsing them, over one connection to the server for each connection of an agent. It keeps all data with the
kernel's timestamps.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import uvloop

from pytest_agentbench.lib.wire import end_with_stdin, read_line, serving
from pytest_agentbench.tap.clock import ANCILLARY, enable_timestamps, keep_timestamping
from pytest_agentbench.tap.connections import READ_BUFFER


class Sides:
    """A connection of an agent (`near`) and the connection to the server (`far`) to which its bytes are forwarded, and back."""

    def __init__(self, near: socket.socket, port: int) -> None:
        self.far = socket.create_connection(("127.0.0.1", port))
        self.near = near
        self.kept: list[tuple[bytes, list[tuple[int, int, bytes]]]] = []
        enable_timestamps(self.far)
        for each, other in ((self.near, self.far), (self.far, self.near)):
            each.setblocking(False)
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            asyncio.get_running_loop().add_reader(each, self.passing(each, other))

    def passing(self, each: socket.socket, other: socket.socket) -> Callable[[], None]:
        def readable() -> None:
            try:
                size, stamps, _, _ = each.recvmsg_into([READ_BUFFER], ANCILLARY)
            except OSError:
                size = 0
            if not size:
                self.close()
                return
            data = bytes(READ_BUFFER[:size])
            other.send(data)
            self.kept.append((data, stamps))

        return readable

    def close(self) -> None:
        for each in (self.near, self.far):
            asyncio.get_running_loop().remove_reader(each)
            each.close()


async def serve(port: int) -> None:
    loop, end = asyncio.get_running_loop(), asyncio.Event()
    end_with_stdin(loop, end)
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    listener.setblocking(False)
    connections = set[Sides]()
    loop.add_reader(listener, lambda: connections.add(Sides(listener.accept()[0], port)))
    serving({"port": listener.getsockname()[1], "control_port": 0})
    with keep_timestamping():
        await end.wait()


if __name__ == "__main__":
    uvloop.run(serve(read_line()["port"]))
