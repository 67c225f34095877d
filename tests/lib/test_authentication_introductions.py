"""Clients must send a short first message with the token within a time limit."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from pytest_agentbench.lib import wire
from pytest_agentbench.lib.authentication import HELLO, Introductions
from pytest_agentbench.lib.wire import PROTOCOL, Hello, OtherVersion, header
from tests.lib.test_wire_messages import SMALL

Line = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def server(introductions: Introductions) -> AsyncIterator[int]:
    """Runs a server that sends `welcome` to authenticated clients. Yields its port."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if await introductions.hello(reader, writer) is not None:
                writer.write(b"welcome")
        except EOFError:
            pass
        finally:
            writer.close()

    running = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with running:
        yield running.sockets[0].getsockname()[1]


async def received(reader: asyncio.StreamReader) -> bytes:
    """Returns all data until the connection is closed, also if it is reset."""
    try:
        return await asyncio.wait_for(reader.read(), 20)
    except ConnectionError:
        return b""


async def test_clients_with_the_token() -> None:
    """A first message with the token is accepted, up to the maximum size. Another token, a longer message and invalid JSON are refused."""
    empty = len(json.dumps(header(Hello("t", "")), separators=(",", ":")))
    padded, longer = (wire.pack(Hello("t", "x" * size)) for size in (HELLO - empty, HELLO))
    frames = [wire.pack(Hello("t", "test")), padded, longer, wire.pack(Hello("\udc00", "test")), b"\0" * 64]
    async with server(Introductions("t")) as port:
        answers = []
        for frame in frames:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(frame)
            answers.append(await received(reader))
            writer.close()

    assert [b"welcome", b"welcome", b"", b"", b""] == answers


async def test_another_version() -> None:
    """A client with the token but another protocol version gets a sentence with both versions. Without the token it gets no answer."""
    async with server(Introductions("t")) as port:
        for token, answers in (("t", 1), ("guessed", 0)):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(wire.pack(Hello(token, "test", PROTOCOL + 1)))
            if answers:
                with pytest.raises(OtherVersion, match=f"protocol {PROTOCOL + 1}, and this one protocol {PROTOCOL}: both"):
                    SMALL.read((await wire.read(reader))[0])

            assert b"" == await received(reader)
            writer.close()


@pytest.mark.parametrize("damaged", [{"token": "t", "protocol": PROTOCOL}, {"token": "t", "protocol": PROTOCOL, "role": 1}])
async def test_a_damaged_hello(damaged: dict[str, object]) -> None:
    """A first message that has the token, but a missing or wrong field, is not answered."""
    async with server(Introductions("t")) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(wire.framed(["Hello", damaged]))

        assert b"" == await received(reader)
        writer.close()


async def test_a_silent_client() -> None:
    """A silent connection is closed after the time limit."""
    async with server(Introductions("t", patience=0.05)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)

        assert b"" == await received(reader)
        writer.close()


async def test_a_blocked_event_loop() -> None:
    """If the event loop was blocked for longer than the limit, clients that have sent their message meanwhile are accepted."""
    async with server(Introductions("t", patience=0.05)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.sleep(0.01)  # the server usually waits for the message then; the result is the same if it does not
        writer.write(wire.pack(Hello("t", "test")))
        time.sleep(0.2)  # noqa: ASYNC251 - blocking the loop is what is tested

        assert b"welcome" == await received(reader)
        writer.close()


async def test_too_many_silent_clients() -> None:
    """If there are too many silent connections, the oldest is closed, and clients that send their message are served."""
    async with server(Introductions("t", patience=60, most=2)) as port:
        lines: list[Line] = []
        for _ in range(3):
            lines.append(await asyncio.open_connection("127.0.0.1", port))
            await asyncio.sleep(0)
        assert b"" == await received(lines[0][0])
        for reader, writer in lines[1:]:
            writer.write(wire.pack(Hello("t", "test")))

            assert b"welcome" == await received(reader)
        for _, writer in lines:
            writer.close()
