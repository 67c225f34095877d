"""A port that is open to a network lets clients with the token in while others attack it."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.lib import wire
from pytest_agentbench.lib.authentication import Door, Introductions
from pytest_agentbench.lib.connection_security import Trust, server_context
from pytest_agentbench.lib.wire import Hello, raise_limit
from tests.certificates import make, needs_openssl
from tests.lib.test_authentication_introductions import received, server

TOKEN, ROLE = "t", "node"
HELLO = wire.pack(Hello(TOKEN, ROLE))
CLIENT_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"  # the beginning of a TLS handshake


class Served:
    """A running door, and what it let in."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.let_in: list[Hello] = []

    async def handle(self, hello: Hello, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.let_in.append(hello)
        writer.write(b"welcome")

    async def answer(self, data: bytes = HELLO, **tls: Any) -> bytes:
        """Connects, sends `data`, and returns all that comes back until the connection is closed."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, **tls)
        try:
            writer.write(data)
            return await asyncio.wait_for(reader.read(), 20)
        except ConnectionError:
            return b""
        finally:
            writer.close()

    async def stranger(self) -> socket.socket:
        """Connects, and sends nothing."""
        connection = socket.socket()
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", self.port))
        return connection


@asynccontextmanager
async def door(**settings: Any) -> AsyncIterator[Served]:
    with socket.create_server(("127.0.0.1", 0), backlog=4096) as listener:
        served = Served(listener.getsockname()[1])
        serving = asyncio.create_task(Door(TOKEN, ROLE, served.handle, **settings).serve(listener))
        try:
            yield served
        finally:
            serving.cancel()
            with suppress(asyncio.CancelledError):
                await serving


def open_files() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


async def until_open(count: int) -> None:
    """Waits until this process has at most this many open files. The event loop frees descriptors in its next rounds."""
    while open_files() > count:  # noqa: ASYNC110 - there is no event for it
        await asyncio.sleep(0.01)


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    return make(tmp_path)


@pytest.fixture
def tls(certificates: Path) -> dict[str, ssl.SSLContext]:
    """Settings of a door with TLS."""
    return {"tls": server_context(certificates / "server.pem", certificates / "server.key")}


@pytest.fixture
def trusted(certificates: Path) -> dict[str, ssl.SSLContext]:
    """Settings of a client that trusts this door."""
    return {"ssl": Trust.read(str(certificates / "ca.pem")).context}


async def test_tokens_and_roles() -> None:
    """Only the token of this door with the right role is let in. The token of another door, and another role, get no answer."""
    async with door() as served:
        answers = [await served.answer(wire.pack(Hello(*hello))) for hello in ((TOKEN, ROLE), ("session", ROLE), (TOKEN, "controller"))]

    assert [b"welcome", b"", b""] == answers
    assert [Hello(TOKEN, ROLE)] == served.let_in


async def test_a_token_opens_no_other_door() -> None:
    """A process of the session that has a token of its own does not accept the token of this door."""
    async with server(Introductions("session")) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HELLO)

        assert b"" == await received(reader)
        writer.close()


@pytest.mark.parametrize(
    "garbage",
    [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"SSH-2.0-OpenSSH_9.6\r\n", CLIENT_HELLO + b"\0" * 600, b"\0" * 5000,
     struct.pack("!II", 4097, 0), struct.pack("!II", 0, 1 << 29), struct.pack("!II", 12, 0) + b'["Hello",{}]'],
)  # fmt: skip
async def test_garbage(garbage: bytes) -> None:
    """Requests of other protocols, oversized frames and messages without a token are closed at once, without an answer."""
    async with door(patience=60) as served:
        assert b"" == await served.answer(garbage)
        assert b"welcome" == await served.answer()


async def test_slow_bytes() -> None:
    """A client that sends its message byte by byte is closed when its time is over, however often it sends."""
    async with door(patience=0.3) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        ended = asyncio.ensure_future(reader.read())
        sent = 0
        with suppress(ConnectionError):
            while not ended.done() and sent < len(HELLO) - 1:
                writer.write(HELLO[sent : sent + 1])
                sent += 1
                await asyncio.wait([ended], timeout=0.02)
        with suppress(ConnectionError):
            assert b"" == await asyncio.wait_for(ended, 20)
        writer.close()

    assert [] == served.let_in


async def flood(served: Served, count: int) -> list[socket.socket]:
    """Opens this many silent connections."""
    return [await served.stranger() for _ in range(count)]


async def closed(connections: list[socket.socket], count: int) -> None:
    """Waits until this many of the connections, the first ones, are closed by the server."""
    loop = asyncio.get_running_loop()
    for connection in connections[:count]:
        with suppress(ConnectionError):
            assert b"" == await asyncio.wait_for(loop.sock_recv(connection, 1), 20)


async def test_a_flood() -> None:
    """Of 2,000 silent connections only the newest 256 stay open, and a client with the token is let in among them."""
    raise_limit()
    async with door(patience=60) as served:
        before = open_files()
        strangers = await flood(served, 2000)
        await closed(strangers, 2000 - 256)

        assert b"welcome" == await served.answer()
        assert open_files() - before - 2000 <= 256 + 1
        for each in strangers:
            each.close()


@needs_openssl
async def test_a_flood_of_handshakes(tls: dict[str, Any], trusted: dict[str, Any]) -> None:
    """The same holds for connections that do not begin or do not finish their TLS handshake."""
    raise_limit()
    async with door(patience=60, **tls) as served:
        before = open_files()
        strangers = await flood(served, 1000)
        for each in strangers[::2]:
            with suppress(OSError):
                each.send(CLIENT_HELLO)
        await closed(strangers, 1000 - 256)

        assert b"welcome" == await served.answer(**trusted)
        assert open_files() - before - 1000 <= 256 + 1
        for each in strangers:
            each.close()


@needs_openssl
async def test_connections_that_wait(tls: dict[str, Any], trusted: dict[str, Any]) -> None:
    """Connections that wait when the server begins to accept are bounded, too, and nothing is left of those that are closed."""
    before = open_files()
    async with door(patience=60, most=8, **tls) as served:
        strangers = [socket.create_connection(("127.0.0.1", served.port)) for _ in range(64)]
        for each in strangers:
            each.setblocking(False)
        await closed(strangers, 64 - 8)

        assert b"welcome" == await served.answer(**trusted)
    for each in strangers:
        each.close()
    await until_open(before)


@needs_openssl
async def test_a_silent_handshake(tls: dict[str, Any]) -> None:
    """A connection that does not begin its handshake is closed when its time is over."""
    async with door(patience=0.1, **tls) as served:
        await closed([connection := await served.stranger()], 1)
        connection.close()


@needs_openssl
async def test_a_handshake_that_the_client_breaks_off(tls: dict[str, Any], trusted: dict[str, Any]) -> None:
    """A connection that ends in the middle of its handshake leaves nothing behind."""
    async with door(patience=60, **tls) as served:
        before = open_files()
        for data in (b"", CLIENT_HELLO, b"GET / HTTP/1.1\r\n\r\n"):
            connection = await served.stranger()
            connection.send(data)
            connection.shutdown(socket.SHUT_WR)
            await closed([connection], 1)
            connection.close()

        assert b"welcome" == await served.answer(**trusted)
        await until_open(before)


@needs_openssl
async def test_a_client_without_tls(tls: dict[str, Any]) -> None:
    """A door with TLS lets no client in without it, even with the right token."""
    async with door(**tls) as served:
        answer = await served.answer()

    assert b"welcome" not in answer
    assert [] == served.let_in


@needs_openssl
async def test_refused_clients_over_tls(tls: dict[str, Any], trusted: dict[str, ssl.SSLContext]) -> None:
    """A refused client that does not close its TLS connection occupies nothing on the server."""

    def guess(port: int) -> ssl.SSLSocket:
        """Sends a wrong token, and neither reads nor closes."""
        connection = trusted["ssl"].wrap_socket(socket.create_connection(("127.0.0.1", port)), server_hostname="127.0.0.1")
        connection.sendall(wire.pack(Hello("guessed", ROLE)))
        return connection

    async with door(patience=60, **tls) as served:
        before = open_files()
        clients = [await asyncio.to_thread(guess, served.port) for _ in range(20)]
        await asyncio.wait_for(until_open(before + 20), 20)
        for each in clients:
            each.close()

    assert [] == served.let_in


async def test_the_end_closes_all_connections() -> None:
    """When the door is cancelled, admitted and silent connections are closed."""
    async with door() as served:
        before = open_files()
        silent = await served.stranger()
        assert b"welcome" == await served.answer()
    await closed([silent], 1)
    silent.close()

    assert open_files() < before
