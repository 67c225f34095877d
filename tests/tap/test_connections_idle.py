"""Idle connections to a backend, and requests that a backend does not answer."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from pytest_agentbench.tap.connections import LONGEST_IDLE as LONGEST
from tests.certificates import needs_openssl
from tests.tap.peers import Handler, Message, Tap, agent, backend, read_message, request, said, text_of, until

Serve = Callable[[Handler], AbstractAsyncContextManager[None]]

RESET = struct.pack("ii", 1, 0)  # value of SO_LINGER


@pytest.fixture(params=["plain", pytest.param("tls", marks=needs_openssl)])
def serve(request: pytest.FixtureRequest, tap: Tap) -> Serve:
    """Points the tap at a backend, with kernel timestamps or with TLS."""

    @asynccontextmanager
    async def plain(handler: Handler) -> AsyncIterator[None]:
        async with backend(handler) as url:
            await tap.point_at(url)
            yield

    @asynccontextmanager
    async def behind_tls(handler: Handler) -> AsyncIterator[None]:
        certificates: Path = request.getfixturevalue("certificates")
        context: ssl.SSLContext = request.getfixturevalue("tls")
        async with backend(handler, ssl=context) as url:
            await tap.point_at(url, ca_file=str(certificates / "ca.pem"))
            yield

    return plain if request.param == "plain" else behind_tls


class Mortal:
    """A backend that answers, and dies when it receives a certain request."""

    def __init__(self, dies_of: int, *, with_reset: bool = False) -> None:
        self.dies_of, self.with_reset = dies_of, with_reset
        self.heard: list[Message] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            self.heard.append(await read_message(reader))
            if len(self.heard) == self.dies_of:
                if self.with_reset:
                    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                    writer.transport.abort()
                return
            writer.write(said())
            await writer.drain()


@pytest.mark.parametrize("with_reset", [False, True], ids=["end", "reset"])
@pytest.mark.parametrize("dies_of", [1, 2], ids=["on-a-new-connection", "on-one-that-was-used"])
async def test_a_backend_that_dies_of_a_request(tap: Tap, serve: Serve, dies_of: int, with_reset: bool) -> None:
    """On any connection, a crash is recorded as `cut`. The agent gets a 502, and the request is not sent again."""
    id = await tap.open()
    mortal = Mortal(dies_of, with_reset=with_reset)
    async with serve(mortal), agent(tap.port) as caller:
        statuses = [(await caller.ask(request(id))).status for _ in range(3)]
    calls = await tap.close(id)

    wanted: list[int] = [200, 200, 200]
    wanted[dies_of - 1] = 502
    assert wanted == statuses
    assert 3 == len(mortal.heard)
    lost = calls[dies_of - 1]
    assert ("cut", "the backend closed the connection before its answer", 0) == (lost.error_kind, lost.error, lost.repeats)
    assert [None, None] == [call.error_kind for call in calls if call is not lost]


async def test_a_close_that_is_there_before_the_send(tap: Tap, serve: Serve) -> None:
    """If the backend has closed an idle connection, the call uses another one, and its record counts that."""
    id = await tap.open()
    close, closed = asyncio.Event(), asyncio.Event()
    heard: list[int] = []  # number of the connection of each request
    connections = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        mine = connections
        while mine > 1 or not heard:
            await read_message(reader)
            heard.append(mine)
            writer.write(said(f"from connection {mine}"))
        await close.wait()
        writer.transport.abort()
        closed.set()

    async with serve(handle), agent(tap.port) as caller:
        await caller.ask(request(id))
        os.kill(tap.child.process.pid, signal.SIGSTOP)  # So it gets the request and the close at the same time.
        try:
            await caller.send(request(id))
            close.set()
            await closed.wait()
        finally:
            os.kill(tap.child.process.pid, signal.SIGCONT)
        answer = await caller.answer()
        await caller.ask(request(id))
    calls = await tap.close(id)

    assert "from connection 2" == text_of(answer)
    assert [1, 2, 2] == heard
    assert [(None, 0), (None, 1), (None, 0)] == [(call.error_kind, call.repeats) for call in calls]


async def test_a_connection_that_lay_idle_for_long(tap: Tap, serve: Serve) -> None:
    """A connection that was idle for long is replaced before the backend may close it during a request."""
    id = await tap.open()
    ended: list[int] = []
    connections = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        mine = connections
        try:
            while True:
                await read_message(reader)
                writer.write(said())
        except EOFError:
            ended.append(mine)

    async with serve(handle), agent(tap.port) as caller:
        await caller.ask(request(id))
        await asyncio.sleep(LONGEST + 0.2)
        await caller.ask(request(id))
        await until(lambda: ended, "the end of the first connection")
        assert [1] == ended
    calls = await tap.close(id)

    assert 2 == connections
    assert [(None, 0)] * 2 == [(call.error_kind, call.repeats) for call in calls]
