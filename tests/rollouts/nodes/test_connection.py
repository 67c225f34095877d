"""The connection of a node worker: frames of several threads arrive whole, with TLS and without, and no thread waits after the end."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib import wire
from pytest_agentbench.lib.authentication import Door
from pytest_agentbench.lib.connection_security import Trust, fingerprint_of, server_context
from pytest_agentbench.lib.wire import Hello
from pytest_agentbench.rollouts.nodes.connection import NodeConnection
from pytest_agentbench.rollouts.nodes.protocol import FROM_NODE, ROLE, Leaving, Tock
from tests.certificates import make, needs_openssl

TOKEN = "t"


class Session:
    """The session's side: a door whose handler is `serve`. It runs in a thread with an event loop of its own, as the pool does."""

    def __init__(self, listener: socket.socket, tls: ssl.SSLContext | None) -> None:
        self.port = listener.getsockname()[1]
        self.arrived: list[wire.Packet] = []
        self.hello: Hello | None = None
        self._door, self._listener = Door(TOKEN, ROLE, self._echo, tls), listener
        self.goes_on = threading.Event()  # whether the session reads
        self.goes_on.set()

    async def _echo(self, hello: Hello, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Sends each frame back."""
        self.hello = hello
        while self.goes_on.is_set():
            packet = await wire.read(reader)
            self.arrived.append(packet)
            writer.write(wire.framed(*packet))
        await asyncio.Event().wait()

    async def serve(self) -> None:
        await self._door.serve(self._listener)


@asynccontextmanager
async def session(tls: ssl.SSLContext | None = None) -> AsyncIterator[Session]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        running = Session(listener, tls)
        serving = asyncio.create_task(running.serve())
        try:
            yield running
        finally:
            serving.cancel()
            with suppress(asyncio.CancelledError):
                await serving


def context_of(folder: Path) -> ssl.SSLContext:
    make(folder)
    return server_context(folder / "server.pem", folder / "server.key")


def joined(port: int, trust: Trust | None = None) -> NodeConnection:
    return NodeConnection.connect("127.0.0.1", port, TOKEN, trust)


@pytest.mark.parametrize("encrypted", [False, pytest.param(True, marks=needs_openssl)])
async def test_many_threads(tmp_path: Path, encrypted: bool) -> None:
    """Frames that four threads send while a fifth receives arrive whole, each thread's in its order, in both directions."""
    frames = {
        name: [(["x", {"of": name, "number": number}], bytes([number % 256]) * (number * 3001 % 70_000)) for number in range(60)]
        for name in "abcd"
    }

    def send_all(connection: NodeConnection, name: str) -> None:
        for frame in frames[name]:
            connection.send_frame(*frame)

    async with session(context_of(tmp_path) if encrypted else None) as running:
        trust = Trust.read(str(tmp_path / "ca.pem")) if encrypted else None
        connection = await asyncio.to_thread(joined, running.port, trust)
        with ThreadPoolExecutor(5) as threads:
            loop = asyncio.get_running_loop()
            receiving = loop.run_in_executor(threads, lambda: [connection.receive() for _ in range(240)])
            await asyncio.gather(*(loop.run_in_executor(threads, send_all, connection, name) for name in frames))
            received = await asyncio.wait_for(receiving, 60)
        connection.close()

    for packets in (received, running.arrived):
        assert frames == {name: [packet for packet in packets if packet[0][1]["of"] == name] for name in frames}
    assert Hello(TOKEN, ROLE) == running.hello


class Watched(socket.socket):
    """A socket that notices if two threads use it at the same time, as TLS of Python before 3.13 does not allow."""

    overlaps = 0
    is_used = False

    def send(self, data: Any, flags: int = 0) -> int:
        with self.used():
            return super().send(data, flags)

    def recv(self, size: int, flags: int = 0) -> bytes:
        with self.used():
            return super().recv(size, flags)

    @contextmanager
    def used(self) -> Iterator[None]:
        self.overlaps += self.is_used
        self.is_used = True
        time.sleep(0.0005)
        try:
            yield
        finally:
            self.is_used = False


def send_many(connection: NodeConnection) -> None:
    for _ in range(20):
        connection.send_frame(["x"], bytes(50_000))


def test_one_operation_at_a_time() -> None:
    """While one thread receives and two send, no two of them use the socket at the same time."""
    near, far = socket.socketpair()
    watched = Watched(fileno=near.detach())
    connection = NodeConnection(watched)
    frame = wire.framed(["x"], bytes(50_000))
    with far, ThreadPoolExecutor(5) as threads:
        threads.submit(far.sendall, frame * 20)
        receiving = threads.submit(lambda: [connection.receive() for _ in range(20)])
        for _ in range(2):
            threads.submit(send_many, connection)
        assert 40 == len([wire.receive(far) for _ in range(40)])
        assert 20 == len(receiving.result(20))
    connection.close()

    assert 0 == watched.overlaps


async def test_messages() -> None:
    """Messages of the protocol can be read on the other side, together with their bodies."""
    async with session() as running:
        connection = await asyncio.to_thread(joined, running.port)
        connection.send(Tock(1, 2), b"body")
        connection.send(Leaving("SIGTERM"))
        packets = [await asyncio.to_thread(connection.receive) for _ in range(2)]
        connection.close()

    assert [(Tock(1, 2), b"body"), (Leaving("SIGTERM"), b"")] == [(FROM_NODE.read(header), body) for header, body in packets]


@pytest.mark.parametrize("encrypted", [False, pytest.param(True, marks=needs_openssl)])
async def test_close_ends_waiting_threads(tmp_path: Path, encrypted: bool) -> None:
    """A thread that waits for a frame, and one whose frame the other side does not read, end when another thread closes the connection."""
    async with session(context_of(tmp_path) if encrypted else None) as running:
        trust = Trust.read(str(tmp_path / "ca.pem")) if encrypted else None
        connection = await asyncio.to_thread(joined, running.port, trust)
        running.goes_on.clear()
        with ThreadPoolExecutor(2) as threads:
            waiting = threads.submit(lambda: [connection.receive() for _ in range(9)])
            sending = threads.submit(connection.send_frame, ["x"], bytes(1 << 28))
            await asyncio.sleep(0.2)  # usually both wait then; the result is the same if they do not
            connection.close()
            connection.close()
            errors = [await asyncio.to_thread(each.exception, 20) for each in (waiting, sending)]

    assert [ConnectionError] * 2 == [*map(type, errors)]
    assert -1 == connection._socket.fileno()
    for operation in (connection.receive, lambda: connection.send(Leaving(""))):
        with pytest.raises(ConnectionError, match="this side closed the connection"):
            operation()


@pytest.mark.parametrize("encrypted", [False, pytest.param(True, marks=needs_openssl)])
async def test_the_session_ends(tmp_path: Path, encrypted: bool) -> None:
    """If the session ends, the receiving thread gets a ConnectionError."""
    async with session(context_of(tmp_path) if encrypted else None) as running:
        trust = Trust.read(str(tmp_path / "ca.pem")) if encrypted else None
        connection = await asyncio.to_thread(joined, running.port, trust)
        connection.send(Leaving(""))
        await asyncio.to_thread(connection.receive)
    with pytest.raises(ConnectionError):
        await asyncio.to_thread(connection.receive)
    connection.close()


async def test_arrivals() -> None:
    """The time of the last arrival changes with each part of a frame, so that a long frame is not taken for silence."""
    near, far = socket.socketpair()
    with far:
        connection = NodeConnection(near)
        before, frame = connection.last_received, wire.framed(["x"], b"body")
        receiving = asyncio.create_task(asyncio.to_thread(connection.receive))
        for part in (frame[:5], frame[5:14]):
            far.send(part)
            while connection.last_received == before:  # noqa: ASYNC110 - another thread changes it
                await asyncio.sleep(0.001)
            before = connection.last_received
        far.send(frame[14:])

        assert (["x"], b"body") == await receiving
        connection.close()


async def test_invalid_headers() -> None:
    """A header that is not JSON is an error of its frame alone."""
    near, far = socket.socketpair()
    with far:
        connection = NodeConnection(near)
        far.send(b"\0\0\0\1\0\0\0\0{" + wire.framed(["next"]))
        with pytest.raises(ValueError, match="Expecting"):
            connection.receive()

        assert (["next"], b"") == connection.receive()
        connection.close()


@needs_openssl
async def test_certificates(tmp_path: Path) -> None:
    """The server's certificate must be signed by the authority and have the host's name, or be the pinned one. Else no token is sent."""
    other = tmp_path / "other"
    other.mkdir()
    make(other)
    async with session(context_of(tmp_path)) as running:
        for trust in (Trust.read(str(tmp_path / "ca.pem")), Trust.read(fingerprint_of(tmp_path / "server.pem"))):
            connection = await asyncio.to_thread(joined, running.port, trust)
            connection.send(Leaving(""))
            await asyncio.to_thread(connection.receive)
            connection.close()
        assert running.hello is not None
        running.hello = None
        refused = [
            (Trust.read(str(other / "ca.pem")), "127.0.0.1", "the certificate of 127.0.0.1 is not accepted"),
            (Trust.read(str(tmp_path / "ca.pem")), "localhost", r"localhost is not accepted \(Hostname mismatch"),
            (Trust.read(fingerprint_of(other / "server.pem")), "127.0.0.1", "the server has a certificate with the fingerprint sha256:"),
        ]
        for trust, host, match in refused:
            with pytest.raises(ConfigError, match=match):
                await asyncio.to_thread(NodeConnection.connect, host, running.port, TOKEN, trust)

    assert running.hello is None


@needs_openssl
async def test_one_side_without_tls(tmp_path: Path) -> None:
    """A node worker with TLS does not join a session without it, and says so. Without TLS it does not join a session that has it."""
    trust = Trust.read(str(make(tmp_path) / "ca.pem"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        joining = asyncio.create_task(asyncio.to_thread(joined, listener.getsockname()[1], trust))
        accepted, _ = await asyncio.to_thread(listener.accept)
        with accepted:
            accepted.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            with pytest.raises(ConfigError, match=r"127\.0\.0\.1 does not speak TLS on this port"):
                await joining
    async with session(server_context(tmp_path / "server.pem", tmp_path / "server.key")) as running:
        connection = await asyncio.to_thread(joined, running.port)
        with pytest.raises(ConnectionError):
            await asyncio.to_thread(connection.receive)
        connection.close()

    assert running.hello is None


async def test_a_server_that_does_not_answer() -> None:
    """A server that accepts a connection and never finishes the handshake is an error after the time limit."""
    with socket.create_server(("127.0.0.1", 0)) as listener, pytest.raises(OSError, match="timed out"):
        await asyncio.to_thread(NodeConnection.connect, "127.0.0.1", listener.getsockname()[1], TOKEN, Trust.read("system"), 0.1)
